#include "core/terms.h"

namespace tessera::detail {

namespace {

bool is_term(const Placement& placement) {
  return placement.is_partial() && placement.reduce_op() != ReduceOp::Min &&
         placement.reduce_op() != ReduceOp::Max;
}

}  // namespace

c10::ScalarType accumulate_dtype(c10::ScalarType dtype) {
  const bool half = dtype == c10::kHalf || dtype == c10::kBFloat16;
  return half ? c10::kFloat : dtype;
}

bool holds_terms(const DeviceMesh& mesh, PlacementsRef placements) {
  for (size_t m = 0; m < placements.size(); ++m) {
    if (is_term(placements[m]) && mesh.shape()[m] > 1) {
      return true;
    }
  }
  return false;
}

c10::ScalarType shard_dtype_in(const Spec& from, PlacementsRef to) {
  return holds_terms(from.mesh, to) ? from.shard_dtype : from.dtype;
}

c10::ScalarType shard_dtype_of_result(
    const DeviceMesh& mesh, PlacementsRef placements, c10::ScalarType dtype) {
  // The terms of a lookup are rows, and zeros.
  bool adds_up = false;
  for (const Placement& placement : placements) {
    adds_up |= placement.kind() == Placement::Kind::Partial;
  }
  return adds_up && holds_terms(mesh, placements) ? accumulate_dtype(dtype)
                                                  : dtype;
}

}  // namespace tessera::detail
