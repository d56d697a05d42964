// Where the library is loaded, every op is registered with the dispatcher.
#include "embedding/embedding.h"
#include "ops/all_ops.h"

namespace tessera::detail {

namespace {

[[maybe_unused]] const bool registered = [] {
  register_all_ops({register_embeddings, register_ops});
  return true;
}();

}  // namespace

}  // namespace tessera::detail
