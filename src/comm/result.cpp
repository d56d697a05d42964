#include "comm/result.h"

#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

#include <numeric>

#include "comm/result_memory.h"

namespace tessera::detail {

int64_t total(const Parts& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0});
}

int64_t offset(const Parts& parts, int64_t index) {
  return std::accumulate(parts.begin(), parts.begin() + index, int64_t{0});
}

at::Tensor empty_resized(const at::Tensor& in, int64_t dim, int64_t size) {
  Sizes sizes(in.sizes().begin(), in.sizes().end());
  sizes[dim] = size;
  return empty_result(sizes, in.options());
}

at::Tensor empty_exchanged(
    const at::Tensor& in,
    int64_t split_dim,
    int64_t split_size,
    int64_t concat_dim,
    int64_t concat_size) {
  Sizes sizes(in.sizes().begin(), in.sizes().end());
  sizes[split_dim] = split_size;
  sizes[concat_dim] = concat_size;
  return empty_result(sizes, in.options());
}

at::Tensor fresh_copy(const at::Tensor& in) {
  at::Tensor out = empty_result(in.sizes(), in.options());
  out.copy_(in);
  return out;
}

at::Tensor packed(const at::Tensor& in) {
  const bool is_so = in.is_contiguous() && !in.is_conj() && !in.is_neg();
  return is_so ? in : fresh_copy(in);
}

void concatenate(const at::Tensor& out, ShardsRef pieces, int64_t dim) {
  at::Tensor target = out;
  at::cat_out(target, pieces, dim);
}

bool outermost(c10::IntArrayRef sizes, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d) {
    if (sizes[d] != 1) return false;
  }
  return true;
}

void check_parts(
    ShardsRef in, int64_t dim, PartsRef parts, int64_t group_size) {
  check_part_counts(in, parts, group_size);
  for (size_t i = 0; i < in.size(); ++i) {
    TORCH_INTERNAL_ASSERT(
        total(parts[i]) == in[i].size(dim),
        "the parts of shard ",
        i,
        " sum up to ",
        total(parts[i]),
        " but its dimension ",
        dim,
        " has ",
        in[i].size(dim));
  }
}

void check_part_counts(ShardsRef in, PartsRef parts, int64_t group_size) {
  TORCH_INTERNAL_ASSERT(
      parts.size() == in.size(),
      in.size(),
      " shards but ",
      parts.size(),
      " lists of parts");
  for (const auto& list : parts) {
    TORCH_INTERNAL_ASSERT(
        static_cast<int64_t>(list.size()) == group_size,
        list.size(),
        " parts for a group of ",
        group_size);
  }
}

}  // namespace tessera::detail
