// Pooled lookups over a part of a table: the local work of embedding bags whose
// table is row-wise sharded. Plain functions on plain tensors: no
// communication, no autograd, no dispatcher.
//
// A part holds the rows [first, first + weight.size(0)) of a table of `total`
// rows. Every part may be given all indices: those of other parts' rows count
// as absent, so that the parts' results put together are the whole table's.
//
// - sum: the parts' results add up.
// - mean: they add up too. Each part divides its sum by the number of entries
//   of the *whole* bag, which follows from the indices, before it rounds.
//   So a mean needs no second step after the reduction, half kinds do not
//   overflow on the way, and a part of one is the mean itself.
// - max: each part gives its maxima and who won them; `merge_bag_max` puts
//   parts together.
//
// float, double, half and bfloat16 tables; half kinds are pooled in float. On
// the CPU one vectorised pass reads each row held here once, and results do not
// depend on the number of threads. GPUs have kernels of their own (cuda/), with
// which the error of a bad index or offset is raised by a later call
// (device_errors.h). Other devices compose ATen's ops (bag_kernels.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <utility>

namespace tessera::detail {

// ATen's numbers for the modes.
enum class BagMode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

// Where a part stands in its table: its first row, and the rows of all parts.
struct BagPart {
  int64_t first = 0;
  int64_t total = 0;
};

// What is looked up. Bag b holds the entries offsets[b] to offsets[b + 1] of
// `indices`; the last one ends at the last index unless include_last_offset,
// which makes the last offset only an end. Offsets start at 0 and never
// decrease.
struct BagIndices {
  at::Tensor indices;  // [n], int32 or int64, rows of the whole table
  at::Tensor offsets;  // [bags], or [bags + 1] with include_last_offset
  bool include_last_offset = false;
  // A row of the whole table whose entries are left out; -1: none.
  int64_t padding_idx = -1;
  // [n], of the table's dtype: a scale for each entry. Only for sum.
  std::optional<at::Tensor> per_sample_weights = std::nullopt;
  // [bags], int64: what a mean is divided by. Needed only where `indices` does
  // not hold the whole bags, as after an exchange; see bag_counts.
  std::optional<at::Tensor> counts = std::nullopt;
  // Whether `indices` have been found to be rows of the table: they are not
  // read once more to see it.
  bool in_range = false;
};

// How many entries of each bag count, [bags] int64: all but padding. Reads
// only indices, so every part gets the same. Throws as embedding_bag_part.
at::Tensor bag_counts(const BagIndices& input);

// Where each bag's entries begin, then the end of the last one: [bags + 1]
// int64, on the indices' device. Throws whatever embedding_bag_part would of
// `input`, for a table of `rows` rows of which `weight` is a part: for callers
// that must know before they look up.
at::Tensor checked_bag_bounds(
    const at::Tensor& weight,
    int64_t rows,
    const BagIndices& input,
    BagMode mode);

// This part's share of the pooled rows, [bags, d]: zeros where a bag has no
// entry here, or no entry at all.
// Requires: `mode` is kSum or kMean. `result` is the table's dtype (the
// default) or, for half kinds, float: then parts can be added up before the one
// rounding.
// Throws c10::IndexError "[embedding_bag] index 12 is outside the table of 10
// rows; expected 0 to 9" for the first such index, and c10::ValueError or
// c10::TypeError for shapes, offsets and dtypes that do not fit.
at::Tensor embedding_bag_part(
    const at::Tensor& weight,
    const BagPart& part,
    const BagIndices& input,
    BagMode mode,
    std::optional<at::ScalarType> result = std::nullopt);

// Maxima of a part.
struct BagMax {
  at::Tensor values;  // [bags, d], the table's dtype
  // [bags, d], int32: the entry (its place in `indices`) that each value comes
  // from, the first one of equals; -1 where the part has none. Places, unlike
  // rows, say which of two equal values came first, and tell a row that is
  // twice in a bag from two rows.
  at::Tensor argmax;
};

// What a value is where a part has no entry of the bag.
enum class BagEmpty {
  kLowest,  // minus infinity: a part, to be merged
  kZero,    // the final result; right only where the part is the whole table
};

// This part's maxima. A NaN wins where it is in the bag's first entry and
// nowhere else, as in at::embedding_bag.
// Throws as embedding_bag_part.
BagMax embedding_bag_max_part(
    const at::Tensor& weight,
    const BagPart& part,
    const BagIndices& input,
    BagEmpty empty = BagEmpty::kLowest);

// Merges the maxima of another part into those of the bags `bags` (int64,
// distinct) of `all`, in place: part.values[i] belongs to bag bags[i]. Of equal
// maxima the earliest entry stays. Values without an argmax stay as they are.
// Requires: argmax are places in one list of indices; contiguous on the CPU.
void merge_bag_max_(
    const BagMax& all, const at::Tensor& bags, const BagMax& part);

// The maxima of all parts together, 0 where no part has an entry. The argmax
// must be places in one list of indices, which all parts have been given.
// Requires: at least one part; equal sizes.
BagMax merge_bag_max(at::ArrayRef<BagMax> parts);

// The rows (of the whole table) that won, as ATen's max_indices: [bags, d], of
// the indices' dtype; -1 where nobody did.
at::Tensor bag_max_rows(const at::Tensor& argmax, const BagIndices& input);

// What the backward pass of a part's bags is given.
struct BagGradient {
  at::Tensor grad;  // [bags, d], of the whole result
  BagPart part;
  BagIndices input;
  BagMode mode = BagMode::kSum;
  // For kMax: the merged ones.
  std::optional<at::Tensor> argmax = std::nullopt;
};

// The gradient of the part's `rows` rows, [rows, d], of grad's dtype. Throws as
// embedding_bag_part.
at::Tensor embedding_bag_dense_backward(const BagGradient& bags, int64_t rows);

// The same as a coalesced sparse COO tensor: the rows that are looked up here,
// each once, in ascending order.
at::Tensor embedding_bag_sparse_backward(const BagGradient& bags, int64_t rows);

// A step of gradient descent: weight -= rate * gradient, in place, where
// `gradient` is what embedding_bag_dense_backward would give for this part.
// Reads and writes the rows that are looked up and no others. Rows of half
// kinds are rounded once; those of float and double too where they have many
// entries, while few are taken one after the other. The gradient has the
// table's dtype or, for half kinds, may be float; per_sample_weights have the
// gradient's. Throws as embedding_bag_part.
void embedding_bag_step_(
    const at::Tensor& weight, const BagGradient& bags, double rate);

// This part's share of the gradient of per_sample_weights, [n] of grad's dtype:
// grad . row for entries whose row is here, 0 for others and for padding. Parts
// add up.
at::Tensor embedding_bag_weights_backward(
    const at::Tensor& grad,
    const at::Tensor& weight,
    const BagPart& part,
    const BagIndices& input);

}  // namespace tessera::detail
