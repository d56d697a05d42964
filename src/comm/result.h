// The tensors that collectives return, before anything is in them, and the
// checks of the sizes their callers pass. The same for both worlds.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/collectives.h"

namespace tessera::detail {

// The sum of all parts.
int64_t total(const Parts& parts);

// Where part `index` begins.
int64_t offset(const Parts& parts, int64_t index);

// A new contiguous tensor of in's type and device, with `size` along `dim`.
at::Tensor empty_resized(const at::Tensor& in, int64_t dim, int64_t size);

// As above with two dimensions changed: what all_to_all gives.
at::Tensor empty_exchanged(
    const at::Tensor& in,
    int64_t split_dim,
    int64_t split_size,
    int64_t concat_dim,
    int64_t concat_size);

// A contiguous copy in memory of its own.
at::Tensor fresh_copy(const at::Tensor& in);

// The tensor itself where it is contiguous and neither conj() nor neg() is
// pending, otherwise a copy that is so.
at::Tensor packed(const at::Tensor& in);

// Fills `out` with the pieces, one after the other along `dim`.
void concatenate(const at::Tensor& out, ShardsRef pieces, int64_t dim);

// True where slices of `sizes` along `dim` lie one after the other in memory.
bool outermost(c10::IntArrayRef sizes, int64_t dim);

// Internal checks (their failure is a bug of the caller in this library): there
// is one list for each shard, it names `group_size` parts, and they sum up to
// the shard's size along `dim`.
void check_parts(ShardsRef in, int64_t dim, PartsRef parts, int64_t group_size);

// As above for all_gather and the like, where the shard is one of the parts:
// only the counts are checked.
void check_part_counts(ShardsRef in, PartsRef parts, int64_t group_size);

}  // namespace tessera::detail
