// _linalg_check_errors: whether a matrix of a batch could not be factored. Each
// rank looks at its own part of the batch, and the ranks agree on how it went.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_linalg_check_errors.h>

#include <string_view>

#include "dispatch/agreement.h"
#include "dispatch/autograd.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"

namespace tessera::detail {
namespace {

constexpr const char* kCause = "aten::_linalg_check_errors";

// Whether no rank has a matrix that failed. Communicates: an agreement.
bool all_went_well(const at::Tensor& info) {
  const DeviceMesh& mesh = distributed_meta(info).spec->mesh;
  try {
    run_agreed(mesh, kCause, [&] {
      for (const auto& shard : current_shards(info)) {
        TORCH_CHECK_VALUE(
            shard.count_nonzero().item<int64_t>() == 0, "a matrix failed");
      }
    });
  } catch (const c10::ValueError&) {
    return false;
  }
  return true;
}

void linalg_check_errors(
    const at::Tensor& given, std::string_view name, bool is_matrix) {
  if (given.is_meta()) {
    return;
  }
  auto info = reduced_for(given, kCause);
  const Spec& spec = *distributed_meta(info).spec;
  if (differs_over_ranks(spec.placements, spec.mesh)) {
    if (all_went_well(info)) {
      return;
    }
    // Every rank throws the same, and names the element of the whole batch.
    info = redistribute(info, Placements(spec.mesh.ndim(), Replicate()));
  }
  for (const auto& shard : current_shards(info)) {
    at::_linalg_check_errors(shard, name, is_matrix);
  }
}

}  // namespace

void register_matrix_errors(OpRegistry& ops) {
  ops.composed("_linalg_check_errors", TORCH_FN(linalg_check_errors));
}

}  // namespace tessera::detail
