#include "kernels/huge_pages.h"

#include <ATen/ops/empty.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace tessera::detail {

namespace {

// Two huge pages: less has none for certain, wherever it begins.
constexpr uintptr_t kLeast = uintptr_t{4} << 20;

}  // namespace

bool prefer_huge_pages(const at::Tensor& tensor) {
#ifdef MADV_HUGEPAGE
  if (!tensor.is_cpu() || !tensor.has_storage()) {
    return false;
  }
  const auto& storage = tensor.storage();
  if (storage.nbytes() < kLeast) {
    return false;
  }
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(storage.data());
  const uintptr_t begin = (first + page - 1) / page * page;
  const uintptr_t end = (first + storage.nbytes()) / page * page;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) ==
         0;
#else
  return false;
#endif
}

at::Tensor copy_on_huge_pages(const at::Tensor& tensor) {
  at::Tensor copy = at::empty(tensor.sizes(), tensor.options());
  prefer_huge_pages(copy);
  return copy.copy_(tensor);
}

}  // namespace tessera::detail
