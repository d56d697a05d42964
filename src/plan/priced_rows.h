// What it costs to choose a row of a rule on each mesh dimension.
#pragma once

#include <c10/util/SmallVector.h>

#include <limits>

#include "plan/propagate.h"

namespace tessera::detail {

// The row picked on each mesh dimension, by its number.
using Candidate = c10::SmallVector<uint32_t, 4>;

struct Price {
  // Why the candidate does not hold; nullptr if it does.
  const char* refusal = nullptr;
  // Of redistributing the inputs, in microseconds.
  double cost = 0;
  // What the search minimises: the cost and, unless the candidate only passes
  // reductions on, the price of those that it leaves pending, so that none is
  // made or made larger for nothing.
  double total = 0;
};

// Keeps references to what it is given: a value for the time of one choice.
class PricedRows {
 public:
  // Throws c10::ValueError if a row does not have one placement for each tensor
  // argument and each result.
  PricedRows(const PropagationInput& input, const Rows& rows);

  // The rule's rows, then the one that replicates everything.
  size_t row_count() const { return rows_.size() + 1; }
  const Row& row(size_t index) const {
    return index < rows_.size() ? rows_[index] : replicate_;
  }

  // Why a row cannot be picked on a mesh dimension whatever the others hold;
  // nullptr if it can.
  const char* refusal(const Row& row, size_t mesh_dim) const;

  // The price of a candidate of rows that are not refused. A search that has
  // one for `bound` already may be answered with an infinite total as soon as
  // this one is not below it.
  Price price(
      const Candidate& candidate,
      double bound = std::numeric_limits<double>::infinity()) const;

  // Where the candidate wants a tensor argument, and where it leaves a result.
  Placements input(const Candidate& candidate, size_t index) const;
  Placements output(const Candidate& candidate, size_t index) const;

  // Whether the row takes the inputs as they lie on the mesh dimension.
  bool exact(const Row& row, size_t mesh_dim) const;
  // Whether the row takes an input whose reduction is pending on the mesh
  // dimension and leaves more elements to be reduced than came in.
  bool grows(const Row& row, size_t mesh_dim) const;
  // What the row costs there while the other mesh dimensions stay as they are;
  // infinite where it cannot be had so.
  double price_alone(const Row& row, size_t mesh_dim) const;

  size_t ndim() const { return shape_.size(); }

 private:
  bool fits(const Row& row) const;
  bool keeps_written(const Row& row, size_t mesh_dim) const;
  bool shards_suffice(const Candidate& candidate) const;
  // What a row does with reductions that are pending on a mesh dimension, in
  // elements: those of the inputs that it takes pending, of the results that it
  // leaves so.
  struct PendingElements {
    int64_t taken = 0;
    int64_t left = 0;
    bool takes_any = false;
    bool leaves_any = false;
  };
  PendingElements pending_elements(const Row& row, size_t mesh_dim) const;
  bool any_grows(const Candidate& candidate) const;
  bool only_passes_on(const Candidate& candidate) const;
  bool sends(const Candidate& candidate) const;
  double least_cost(const Candidate& candidate) const;
  double pending_price(const Candidate& candidate) const;

  const PropagationInput& input_;
  const Rows& rows_;
  Row replicate_;
  c10::ArrayRef<int64_t> shape_;  // of the mesh
  int64_t element_size_ = 1;      // of pending results, as far as is known
};

}  // namespace tessera::detail
