// tessera::bag: pooled rows of a part of a table, with its gradients. On plain
// tensors, which say what part they are, and on distributed ones, whose layout
// says it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "dispatch/own_op.h"
#include "dispatch/tensor.h"
#include "kernels/bag/bag.h"

namespace tessera::detail {

struct BagArgs {
  BagMode mode = BagMode::kSum;
  bool include_last_offset = false;
  int64_t padding_idx = -1;  // a row that counts as absent; -1 for none
  // Each shard of a distributed tensor's indices holds whole bags.
  bool whole_bags = false;
  bool sparse = false;  // the gradient holds only the touched rows
};

// How many bags these offsets begin.
inline int64_t all_bags(const at::Tensor& offsets, bool include_last_offset) {
  return offsets.size(0) - (include_last_offset ? 1 : 0);
}

// What part of the table and of the bags a tensor holds.
struct BagLocal {
  int64_t first_row = 0;
  std::optional<int64_t> table_rows = std::nullopt;
  int64_t first_bag = 0;
  std::optional<int64_t> bag_count = std::nullopt;
  int64_t first_index = 0;
};

// What of them lives at `position`, where `table` and `batch` are the layouts
// of the table and the indices.
BagLocal bags_at(
    const Spec& table, const Spec& batch, int64_t bags, int64_t position);

struct BagTensors {
  at::Tensor indices;
  at::Tensor offsets;
  std::optional<at::Tensor> per_sample_weights;
};

// The bags of a part, as its indices see them.
BagIndices local_bags(
    const BagTensors& bags, const BagArgs& args, const BagLocal& local);

// BagArgs and BagLocal in a schema.
#define TESSERA_BAG_OPTIONS                                          \
  "int mode=0, bool include_last_offset=False, int padding_idx=-1, " \
  "bool whole_bags=False, bool sparse=False, *, int first_row=0, "   \
  "int? table_rows=None, int first_bag=0, int? bag_count=None, "     \
  "int first_index=0"

// The rows of each bag, pooled: [bags, d], and the argmax of maxima (BagMax's;
// empty for other modes). Differentiable by `weight` and `per_sample_weights`.
struct Bag {
  static constexpr const char* kSchema =
      "bag(Tensor weight, Tensor indices, Tensor offsets, "
      "Tensor? per_sample_weights=None, " TESSERA_BAG_OPTIONS
      ", ScalarType? dtype=None) -> (Tensor, Tensor)";
  using Result = std::tuple<at::Tensor, at::Tensor>;
  struct Args {
    at::Tensor weight;
    BagTensors bags;
    BagArgs options;
    BagLocal local;
    // Of sums and means; see embedding_bag_part.
    std::optional<at::ScalarType> dtype = std::nullopt;
  };
};

// The op, recorded where something needs a gradient, without the dispatcher.
Bag::Result recorded_bag(const Bag::Args& args);

// The pooled rows of plain tensors, with `empty` where a part has no entry of a
// bag; the argmax is undefined but for maxima.
BagMax plain_bag(const Bag::Args& args, BagEmpty empty);

// The same, of a part of a table. Sums and means are of `dtype`: see
// embedding_bag_part.
BagMax pool_part(
    const at::Tensor& weight,
    const BagPart& part,
    const BagIndices& bags,
    BagMode mode,
    BagEmpty empty = BagEmpty::kZero,
    std::optional<at::ScalarType> dtype = std::nullopt);

// What pool_part's result of these bags, with its argmax, gives the backward
// pass where its gradient is `grad`.
BagGradient bag_gradient(
    const at::Tensor& grad,
    const BagPart& part,
    BagIndices bags,
    BagMode mode,
    const at::Tensor& argmax);

}  // namespace tessera::detail
