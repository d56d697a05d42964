#include "embedding/gathered_lookup.h"

#include <c10/util/Exception.h>

#include "dispatch/agreement.h"
#include "dispatch/tensor.h"
#include "kernels/lookup/embedding_index.h"

namespace tessera::detail {

at::Tensor look_up_gathered(
    const at::Tensor& given,
    const GatheredTable& table,
    c10::function_ref<at::Tensor()> lookup) {
  try {
    return lookup();
  } catch (const c10::IndexError&) {
    const auto find = [&] {
      for (const auto& shard : current_shards(given)) {
        if (!shard.is_cpu()) continue;
        if (const auto bad = first_outside(shard, table.rows)) {
          table.throw_outside(*bad, table.rows);
        }
      }
    };
    run_agreed(distributed_meta(given).spec->mesh, table.cause, find);
    throw;
  }
}

}  // namespace tessera::detail
