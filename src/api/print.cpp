// std::cout << tensor, where the tensor is distributed.
//
// ATen's operator is inline and calls at::print, which reads the storage: there
// is nothing to dispatch on. This definition of at::print stands in the place
// of libtorch's in programs that link us before it, as those do that use the
// CMake target tessera::tessera, and hands plain tensors on. Elsewhere ATen's
// raises, and says that full_tensor() or DTensor(tensor) can be printed.
#include <ATen/core/Formatting.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <ostream>

#include "tessera/dtensor.h"

namespace at {

std::ostream& print(
    std::ostream& stream, const Tensor& tensor, int64_t linesize) {
  if (tessera::is_dtensor(tensor)) {
    return stream << tessera::DTensor(tensor);
  }
  using Print = std::ostream& (*)(std::ostream&, const Tensor&, int64_t);
  // The name by which the linker knows it.
  static const auto next = reinterpret_cast<Print>(
      dlsym(RTLD_NEXT, "_ZN2at5printERSoRKNS_6TensorEl"));
  TORCH_CHECK(next != nullptr, "[print] libtorch has no at::print");
  return next(stream, tensor, linesize);
}

}  // namespace at
