#include "kernels/lookup/embedding_zeros.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/accumulate.h>

#include <cstdint>
#include <memory>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace tessera::detail {
namespace {

// From here on malloc asks the system for new memory each time, so that
// at::zeros waits for each page and then writes what is zero already.
constexpr size_t kLazyBytes = size_t{32} << 20;

#ifdef __linux__
constexpr size_t kHugePage = size_t{2} << 20;

struct Mapping {
  void* begin;
  size_t bytes;
};

void unmap(void* context) {
  const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
  ::munmap(mapping->begin, mapping->bytes);
}

// Memory of zeros, or nullptr where the system has none left.
std::unique_ptr<Mapping> map_zeros(size_t bytes) {
  // Huge pages start at their own multiples only.
  bytes += kHugePage;
  void* const begin = ::mmap(
      nullptr,
      bytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS,
      /*fd=*/-1,
      /*offset=*/0);
  if (begin == MAP_FAILED) {
    return nullptr;
  }
  // Only advice. Rows stand all over the table: with small pages nearly each
  // row would wait for the system, and later readers for each page again.
  ::madvise(begin, bytes, MADV_HUGEPAGE);
  return std::make_unique<Mapping>(begin, bytes);
}

at::Tensor mapped_zeros(
    c10::IntArrayRef sizes, size_t bytes, const at::TensorOptions& options) {
  std::unique_ptr<Mapping> mapping = map_zeros(bytes);
  if (!mapping) {
    return at::zeros(sizes, options);
  }
  void* data = mapping->begin;
  size_t space = mapping->bytes;
  std::align(kHugePage, bytes, data, space);
  return at::for_blob(data, sizes)
      .context(mapping.release(), unmap)
      .options(options)
      .resizeable_storage()
      .allocator(c10::GetCPUAllocator())
      .make_tensor();
}
#else
at::Tensor mapped_zeros(
    c10::IntArrayRef sizes,
    size_t /*bytes*/,
    const at::TensorOptions& options) {
  return at::zeros(sizes, options);
}
#endif

}  // namespace

at::Tensor lazy_zeros(
    c10::IntArrayRef sizes, const at::TensorOptions& options) {
  const size_t bytes = static_cast<size_t>(c10::multiply_integers(sizes)) *
                       options.dtype().itemsize();
  return bytes < kLazyBytes ? at::zeros(sizes, options)
                            : mapped_zeros(sizes, bytes, options);
}

}  // namespace tessera::detail
