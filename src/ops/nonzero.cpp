// nonzero: how many rows it has depends on the values, so that no rule can tell
// the shape of its result before it has run.
#include <ATen/ops/nonzero.h>

#include "comm/comm_event.h"
#include "dispatch/implicit_moves.h"
#include "dispatch/run_steps.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"

namespace tessera::detail {
namespace {

// Every rank looks at the whole tensor and finds the same. On a rank outside
// the mesh, which has no values to look at, there are no rows.
at::Tensor nonzero(const at::Tensor& self) {
  const DistributedMeta& meta = distributed_meta(self);
  const DeviceMesh& mesh = meta.spec->mesh;
  const Placements whole(mesh.ndim(), Replicate());
  check_implicit_move(
      "aten.nonzero.default", "argument 'self'", *meta.spec, whole);
  Shards shards;
  {
    const CommCauseGuard cause("aten::nonzero", meta.spec);
    const auto plan = cached_redistribution(*meta.spec, whole);
    shards = run_steps(*meta.spec, *plan, current_shards(self), Slices::Alias);
  }
  Sizes sizes{0, self.dim()};
  for (at::Tensor& shard : shards) {
    shard = at::nonzero(shard);
    sizes[0] = shard.size(0);
  }
  return make_distributed(
      Spec::make(mesh, whole, sizes, at::kLong), std::move(shards));
}

}  // namespace

void register_nonzero(OpRegistry& ops) { ops.own_kernel("nonzero", &nonzero); }

}  // namespace tessera::detail
