// Ops of our own for bags of rows: tessera::bag with its gradients. With
// autograd, on plain tensors (which say what part of a table they are) and on
// distributed ones (whose layout says it).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "dispatch/tensor.h"
#include "kernels/bag/bag.h"

namespace tessera::detail {

struct BagArgs {
  BagMode mode = BagMode::kSum;
  bool include_last_offset = false;
  int64_t padding_idx = -1;  // a row that counts as absent; -1 for none
  // Where a distributed tensor's indices are cut, the cuts are between bags.
  bool whole_bags = false;
  bool sparse = false;  // the gradient holds the touched rows alone
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

// What of them lives at `position`, where `table` and `batch` are how the table
// and the indices lie.
BagLocal bags_at(
    const Spec& table, const Spec& batch, int64_t bags, int64_t position);

// The bags of a part, as its indices see them.
BagInput local_bags(
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const std::optional<at::Tensor>& per_sample_weights,
    const BagArgs& args,
    const BagLocal& local);

struct Bags {
  at::Tensor pooled;  // [bags, d]
  at::Tensor argmax;  // as BagMax's; empty unless the mode is max
};

// tessera::bag: the rows of each bag, pooled. Differentiable by `weight` and
// `per_sample_weights`.
Bags bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const std::optional<at::Tensor>& per_sample_weights,
    const BagArgs& args,
    const BagLocal& local = {});

// On plain tensors, below the dispatcher.
Bags plain_bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const std::optional<at::Tensor>& per_sample_weights,
    const BagArgs& args,
    const BagLocal& local,
    BagEmpty empty);

}  // namespace tessera::detail
