// Inputs of the ShardedTensor door: checked, and brought into the engine's
// form.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "api/sharded_checks.h"

namespace tessera::detail {

namespace {

void check_integers(const char* caller, const char* name, const at::Tensor& t) {
  TORCH_CHECK_TYPE(
      t.scalar_type() == at::kInt || t.scalar_type() == at::kLong,
      "[",
      caller,
      "] ",
      name,
      " must be int32 or int64, not ",
      t.scalar_type());
}

template <typename Index>
void check_range(const char* caller, const at::Tensor& indices, int64_t rows) {
  const auto* index = indices.const_data_ptr<Index>();
  const auto is_outside = [&](Index i) {
    return static_cast<uint64_t>(static_cast<int64_t>(i)) >=
           static_cast<uint64_t>(rows);
  };
  // Without a branch an index, so that it is vectorised.
  const int64_t count = indices.numel();
  bool outside = false;
  for (int64_t i = 0; i < count; ++i) {
    outside |= is_outside(index[i]);
  }
  if (outside) {
    const Index bad = *std::find_if(index, index + count, is_outside);
    TORCH_CHECK_VALUE(
        false,
        "[",
        caller,
        "] Index out of range in Input ",
        bad,
        " ",
        rows,
        ": expected 0 to ",
        rows - 1);
  }
}

void check_input(
    const char* caller, const at::Tensor& input, const ShardedTensor& weight) {
  TORCH_CHECK_TYPE(
      input.defined() && !is_dtensor(input),
      "[",
      caller,
      "] input need to be torch.Tensor, this rank's own: defined and not "
      "distributed");
  check_integers(caller, "input", input);
  TORCH_CHECK_VALUE(
      input.device().type() == weight.dtensor().device().type(),
      "[",
      caller,
      "] the input must be on the table's device, ",
      weight.dtensor().device(),
      ", not on ",
      input.device());
  const auto on_cpu = input.cpu().contiguous();
  if (on_cpu.scalar_type() == at::kInt) {
    check_range<int32_t>(caller, on_cpu, weight.size(0));
  } else {
    check_range<int64_t>(caller, on_cpu, weight.size(0));
  }
}

// Where the bags of 2-d input begin; then the end.
at::Tensor bounds_of_rows(const at::Tensor& input) {
  return at::arange(input.size(0) + 1, input.options().dtype(at::kLong))
      .mul_(input.size(1));
}

// Offsets with an end.
at::Tensor checked_bounds(
    const at::Tensor& offsets, int64_t entries, bool include_last_offset) {
  TORCH_CHECK_VALUE(
      offsets.dim() == 1,
      "[embedding_bag] offsets must have 1 dimension, not ",
      offsets.dim());
  check_integers(kBagDoor, "offsets", offsets);
  auto bounds = offsets.to(at::kLong);
  if (include_last_offset) {
    TORCH_CHECK_VALUE(
        offsets.size(0) > 0 && bounds[-1].item<int64_t>() == entries,
        "[embedding_bag] offsets need to have the input size in the end when "
        "the flag \"include_last_offset\" is on! The input has ",
        entries,
        " entries");
  } else {
    bounds = at::cat({bounds, at::full({1}, entries, bounds.options())});
  }
  const auto on_cpu = bounds.cpu().contiguous();
  const auto* bound = on_cpu.const_data_ptr<int64_t>();
  TORCH_CHECK_VALUE(
      bound[0] == 0,
      "[embedding_bag] offsets must begin with 0, not ",
      bound[0],
      offsets.size(0) == 0 ? ": there are entries, but no bag" : "");
  for (int64_t b = 0; b + 1 < on_cpu.size(0); ++b) {
    TORCH_CHECK_VALUE(
        bound[b] <= bound[b + 1],
        "[embedding_bag] offsets must ascend and stay within the ",
        entries,
        " entries of the input, but ",
        bound[b],
        " is followed by ",
        bound[b + 1]);
  }
  return bounds;
}

at::Tensor checked_per_sample_weights(
    const sharded::BagInput& input,
    const ShardedTensor& weight,
    const std::string& mode) {
  if (!input.per_sample_weights.has_value()) {
    return {};
  }
  const auto& per_sample_weights = *input.per_sample_weights;
  TORCH_CHECK_VALUE(
      per_sample_weights.sizes() == input.input.sizes(),
      "[embedding_bag] per_sample_weights size ",
      per_sample_weights.sizes(),
      " not equal to input size ",
      input.input.sizes());
  TORCH_CHECK_TYPE(
      per_sample_weights.scalar_type() == weight.dtensor().scalar_type(),
      "[embedding_bag] per_sample_weights must have the table's dtype, ",
      weight.dtensor().scalar_type(),
      ", not ",
      per_sample_weights.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(
      mode == "sum",
      "[embedding_bag] per_sample_weights are supported for mode 'sum' alone, "
      "not for '",
      mode,
      "'");
  return per_sample_weights.reshape({-1});
}

}  // namespace

RankBags checked_rows(const at::Tensor& input, const ShardedTensor& weight) {
  check_input(kLookupDoor, input, weight);
  const auto flat = input.reshape({-1}).contiguous();
  return {flat, bounds_of_rows(flat.unsqueeze(1)), at::Tensor()};
}

RankBags checked_bags(
    const sharded::BagInput& input,
    const ShardedTensor& weight,
    const sharded::EmbeddingBagFuncOptions& options) {
  const auto given = [](const std::optional<at::Tensor>& tensor) {
    return !tensor.has_value() || (tensor->defined() && !is_dtensor(*tensor));
  };
  TORCH_CHECK_TYPE(
      given(input.offsets), "[embedding_bag] offsets need to be torch.Tensor");
  TORCH_CHECK_TYPE(
      given(input.per_sample_weights),
      "[embedding_bag] per_sample_weights need to be torch.Tensor");
  TORCH_CHECK_VALUE(
      !input.input.defined() || input.input.dim() <= 2,
      "[embedding_bag] Input more than 2 dims not supported: it has ",
      input.input.dim());
  check_input(kBagDoor, input.input, weight);
  const int64_t dims = input.input.dim();
  TORCH_CHECK_VALUE(
      dims > 0, "[embedding_bag] the input must have 1 or 2 dims, not 0");
  TORCH_CHECK_VALUE(
      !input.offsets.has_value() || dims == 1,
      "[embedding_bag] Input dimension needs to be exactly 1 dim where offsets "
      "are given");
  TORCH_CHECK_VALUE(
      dims != 1 || input.offsets.has_value(),
      "[embedding_bag] offsets is required for 1D input");
  auto per_sample_weights =
      checked_per_sample_weights(input, weight, options.mode);
  TORCH_CHECK_VALUE(
      !options.include_last_offset || input.offsets.has_value(),
      "[embedding_bag] offsets is required for flag \"include_last_offset\"!");
  auto bounds = dims == 2 ? bounds_of_rows(input.input)
                          : checked_bounds(
                                *input.offsets,
                                input.input.size(0),
                                options.include_last_offset)
                                .to(input.input.device());
  return {
      input.input.reshape({-1}).contiguous(),
      std::move(bounds),
      std::move(per_sample_weights)};
}

}  // namespace tessera::detail
