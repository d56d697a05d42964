// Which dimensions of a tensor become which when it is viewed in another shape.
#pragma once

#include <vector>

#include "tessera/spec.h"

namespace tessera::detail {

// Dimensions of the input and of the output that hold the same elements, in
// order. Dimensions of size 1 belong to none.
struct ViewGroup {
  Sizes in;
  Sizes out;

  // The one dimension has but moved.
  bool unchanged() const { return in.size() == 1 && out.size() == 1; }
};

// The finest groups for a view from `from` to `to`, shapes of one number of
// elements. Empty tensors, whose sizes say nothing of the order of elements,
// have groups only where the dimensions other than 1 agree.
std::vector<ViewGroup> view_groups(SizesRef from, SizesRef to);

// `sizes` as given to view, with its -1 replaced. Throws c10::Error if a tensor
// of `numel` elements cannot be viewed so.
Sizes inferred_sizes(Sizes sizes, int64_t numel);

}  // namespace tessera::detail
