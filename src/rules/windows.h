// Windows that slide over the last dimensions of a tensor: kernels of
// convolutions and of pooling, blocks of im2col.
#pragma once

#include <cstdint>

#include "tessera/rule.h"

namespace tessera::detail {

// The element of `list` for dimension `dim`: a list of one element is for all.
// Throws std::out_of_range if it is too short.
int64_t along(const CheckedSizes& list, int64_t dim);

struct Window {
  int64_t kernel;
  int64_t stride = 1;
  int64_t padding = 0;  // on each side
  int64_t dilation = 1;
};

// How many windows fit on `size` elements, not negative; with `ceil_mode` one
// may reach beyond the end. Throws c10::Error if kernel, stride or dilation is
// not positive, or the padding negative.
int64_t window_count(
    const OpCall& call,
    int64_t size,
    const Window& window,
    bool ceil_mode = false);

// Throws c10::Error if stride or dilation is not positive, or the padding
// negative.
void check_window(const OpCall& call, const Window& window);

}  // namespace tessera::detail
