// Inputs of the functions on ShardedTensors: checked, and brought into the
// lookup's form. What torch.distributed._shard has texts for is checked here,
// the rest by the bags' kernels.
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "api/sharded_checks.h"
#include "kernels/lookup/embedding_index.h"

namespace tessera::detail {

namespace {

bool is_plain(const std::optional<at::Tensor>& tensor) {
  return !tensor.has_value() || (tensor->defined() && !is_dtensor(*tensor));
}

void check_input(
    const char* caller, const at::Tensor& input, const ShardedTensor& weight) {
  TORCH_CHECK_TYPE(
      input.defined() && is_plain(input),
      "[",
      caller,
      "] input need to be torch.Tensor, this rank's own: defined and not "
      "distributed");
  TORCH_CHECK_TYPE(
      input.scalar_type() == at::kInt || input.scalar_type() == at::kLong,
      "[",
      caller,
      "] input must be int32 or int64, not ",
      input.scalar_type());
  TORCH_CHECK_VALUE(
      input.device().type() == weight.dtensor().device().type(),
      "[",
      caller,
      "] the input must be on the table's device, ",
      weight.dtensor().device(),
      ", not on ",
      input.device());
  // On a GPU the kernels that read the indices find bad ones.
  const int64_t rows = weight.size(0);
  const auto bad = input.is_cpu() ? first_outside(input, rows) : std::nullopt;
  TORCH_CHECK_VALUE(
      !bad.has_value(),
      "[",
      caller,
      "] Index out of range in Input ",
      *bad,
      " ",
      rows,
      ": expected 0 to ",
      rows - 1);
}

void check_offsets(
    const sharded::BagInput& bags,
    const sharded::EmbeddingBagFuncOptions& options) {
  const int64_t dims = bags.input.dim();
  TORCH_CHECK_VALUE(
      dims > 0, "[embedding_bag] the input must have 1 or 2 dims, not 0");
  TORCH_CHECK_VALUE(
      !bags.offsets.has_value() || dims == 1,
      "[embedding_bag] Input dimension needs to be exactly 1 dim where offsets "
      "are given");
  TORCH_CHECK_VALUE(
      dims != 1 || bags.offsets.has_value(),
      "[embedding_bag] offsets is required for 1D input");
  TORCH_CHECK_VALUE(
      !bags.per_sample_weights.has_value() ||
          bags.per_sample_weights->sizes() == bags.input.sizes(),
      "[embedding_bag] per_sample_weights size ",
      bags.per_sample_weights.value_or(at::Tensor()).sizes(),
      " not equal to input size ",
      bags.input.sizes());
  TORCH_CHECK_VALUE(
      !options.include_last_offset || bags.offsets.has_value(),
      "[embedding_bag] offsets is required for flag \"include_last_offset\"!");
  if (!bags.offsets.has_value() || bags.offsets->dim() != 1) {
    return;
  }
  const auto& offsets = *bags.offsets;
  const int64_t entries = bags.input.size(0);
  TORCH_CHECK_VALUE(
      !options.include_last_offset ||
          (offsets.size(0) > 0 &&
           (!offsets.is_cpu() || offsets[-1].item<int64_t>() == entries)),
      "[embedding_bag] offsets need to have the input size in the end when "
      "the flag \"include_last_offset\" is on! The input has ",
      entries,
      " entries");
  TORCH_CHECK_VALUE(
      offsets.size(0) > 0 || entries == 0,
      "[embedding_bag] offsets must start at 0: there are entries, but no bag");
}

}  // namespace

LookupInput checked_rows(const at::Tensor& input, const ShardedTensor& weight) {
  check_input(kEmbeddingName, input, weight);
  return {.indices = input.contiguous(), .offsets = {}};
}

LookupInput checked_bags(
    const sharded::BagInput& input,
    const ShardedTensor& weight,
    const sharded::EmbeddingBagFuncOptions& options) {
  TORCH_CHECK_TYPE(
      is_plain(input.offsets),
      "[embedding_bag] offsets need to be torch.Tensor");
  TORCH_CHECK_TYPE(
      is_plain(input.per_sample_weights),
      "[embedding_bag] per_sample_weights need to be torch.Tensor");
  TORCH_CHECK_VALUE(
      !input.input.defined() || input.input.dim() <= 2,
      "[embedding_bag] Input more than 2 dims not supported: it has ",
      input.input.dim());
  check_input(kBagName, input.input, weight);
  check_offsets(input, options);
  BagIndices bags;
  bags.indices = input.input.reshape({-1}).contiguous();
  bags.include_last_offset = options.include_last_offset;
  if (input.offsets.has_value()) {
    bags.offsets = input.offsets->to(bags.indices.device());
  } else {
    // 2-d input: a bag a row.
    const auto longs = bags.indices.options().dtype(at::kLong);
    const int64_t count = input.input.size(0);
    const int64_t entries = input.input.size(1);
    bags.offsets = entries == 0
                       ? at::zeros({count + 1}, longs)
                       : at::arange(0, count * entries + 1, entries, longs);
    bags.include_last_offset = true;
  }
  if (input.per_sample_weights.has_value()) {
    bags.per_sample_weights = input.per_sample_weights->reshape({-1});
  }
  bags.in_range = bags.indices.is_cpu();  // by check_input
  bags.offsets = checked_bag_bounds(
      current_shards(weight.dtensor())[0],
      weight.size(0),
      bags,
      bag_mode_of(options.mode));
  bags.include_last_offset = true;
  return bags;
}

}  // namespace tessera::detail
