#include "kernels/large_pages.h"

#include "tessera/embedding.h"

namespace tessera {

bool prefer_large_pages(const at::Tensor& table) {
  return detail::prefer_large_pages(table);
}

}  // namespace tessera
