// Lookups of a few elements of a sharded dimension. By the rules of views and
// indexing the whole dimension would be gathered; here only what is asked for
// moves. Views of a few elements are in few_views.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include "dispatch/op_info.h"

namespace tessera::detail {

// A negative dimension counts from the end. Not checked: asks_for_few is.
inline int64_t from_front(int64_t dim, const at::Tensor& self) {
  return dim < 0 ? dim + self.dim() : dim;
}

// Whether a mesh dimension of several ranks shards `dim`; false where the
// tensor has no such dimension.
bool is_sharded_along(const at::Tensor& self, int64_t dim);

// Whether a mesh dimension shards `dim`, of which `count` elements are asked
// for, and moving those costs less than gathering all.
bool asks_for_few(const at::Tensor& self, int64_t dim, int64_t count);

// The dtype in which elements of `dtype` are collected, each by a sum of itself
// and zeros: its own, or that of integers of the same bits where nothing adds
// its numbers.
at::ScalarType collected_as(at::ScalarType dtype);

// self.index_select(dim, index) with its gradient, as a lookup: each rank finds
// what it holds. Requires: asks_for_few(self, dim, index.numel()). Of an index
// that is not of one dimension, the result has its dimensions for `dim`. Throws
// c10::IndexError, on every rank and in the name of `op`.
at::Tensor look_up(
    const OpInfo& op,
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index);

}  // namespace tessera::detail
