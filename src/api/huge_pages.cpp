#include "kernels/huge_pages.h"

#include "tessera/embedding.h"

namespace tessera {

bool prefer_huge_pages(const at::Tensor& table) {
  return detail::prefer_huge_pages(table);
}

}  // namespace tessera
