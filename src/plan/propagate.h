// Choosing a row for each mesh dimension: rules and layouts in, layouts out.
#pragma once

#include <string>
#include <vector>

#include "tessera/rule.h"
#include "tessera/spec.h"

namespace tessera::detail {

// What the chooser is asked.
struct PropagationInput {
  const OpCall& call;
  const DeviceMesh& mesh;
  // The spec of each tensor argument; nullptr for undefined ones.
  c10::ArrayRef<SpecPtr> inputs;
  // Global sizes of the results, one a return (a list's: its first tensor's).
  c10::ArrayRef<Sizes> output_sizes;
  // For each return, the index of the tensor argument that it writes and
  // returns, or -1: such a result keeps its argument's layout.
  c10::ArrayRef<int64_t> written_by_output;
  // For each tensor argument, whether the op writes it.
  c10::ArrayRef<bool> written;
  // For each return, whether there is a tensor at all (a gradient that was not
  // asked for is none); empty: for all there is. What a row says of a result
  // that is not there does not count.
  c10::ArrayRef<bool> output_defined = {};

  bool has_output(size_t index) const {
    return output_defined.empty() || output_defined[index];
  }
};

struct PropagationResult {
  std::vector<Placements> inputs;   // one a tensor argument
  std::vector<Placements> outputs;  // one a return
  double cost = 0;                  // of redistributing the inputs
};

// The cheapest combination of rows, one for each mesh dimension, the
// all-replicate row among them. Mesh dimensions that some row takes as they lie
// are left so where that is possible, unless the row makes a pending reduction
// larger: then reducing first is weighed against it. Of equals the first.
// Throws c10::NotImplementedError if none is valid (an in-place op that cannot
// keep its layout).
PropagationResult choose(const PropagationInput& input, const Rows& rows);

// The text of the same search: each row, its price, the choice.
std::string explain_propagation(
    const PropagationInput& input, const Rows& rows);

}  // namespace tessera::detail
