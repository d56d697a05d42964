#include "api/sharded_checks.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "api/sharded_ranks.h"

namespace tessera::detail {

namespace {

void check_flags(
    const char* caller,
    bool scale_grad_by_freq,
    bool sparse,
    const std::optional<double>& max_norm) {
  TORCH_CHECK(
      !scale_grad_by_freq,
      "[",
      caller,
      "] nn.Embedding weight sharded with flag on \"scale_grad_by_freq\" not "
      "supported!");
  TORCH_CHECK(
      !sparse,
      "[",
      caller,
      "] nn.Embedding weight sharded with flag on \"sparse\" not supported!");
  TORCH_CHECK_VALUE(
      !max_norm.has_value() || *max_norm > 0,
      "[",
      caller,
      "] \"max_norm\" must be larger than zero! ",
      max_norm.value_or(0),
      " was given");
}

std::optional<double> checked_step(
    const char* caller,
    const std::optional<sharded::RowSgd>& update,
    const ShardedTensor& weight) {
  if (!update.has_value() || !at::GradMode::is_enabled()) {
    return std::nullopt;
  }
  TORCH_CHECK_VALUE(
      std::isfinite(update->lr) && update->lr >= 0,
      "[",
      caller,
      "] the lr of an update must be finite and not negative, but is ",
      update->lr);
  const at::Tensor table = weight.dtensor();
  TORCH_CHECK_VALUE(
      table.requires_grad() && table.is_leaf(),
      "[",
      caller,
      "] an update needs a weight that requires grad and is a leaf: call "
      "weight.requires_grad_(), or leave `update` out");
  return update->lr;
}

int64_t checked_padding(
    const char* caller,
    const std::optional<int64_t>& padding_idx,
    int64_t rows) {
  if (!padding_idx.has_value()) {
    return -1;
  }
  TORCH_CHECK_VALUE(
      -rows <= *padding_idx && *padding_idx < rows,
      "[",
      caller,
      "] padding_idx must be within the ",
      rows,
      " rows of the table, not ",
      *padding_idx);
  return *padding_idx < 0 ? *padding_idx + rows : *padding_idx;
}

}  // namespace

BagMode bag_mode_of(const std::string& mode) {
  if (mode == "sum") {
    return BagMode::kSum;
  }
  if (mode == "mean") {
    return BagMode::kMean;
  }
  TORCH_CHECK_VALUE(
      mode == "max",
      "[embedding_bag] mode '",
      mode,
      "' is not supported: expected sum, mean or max");
  return BagMode::kMax;
}

void check_sharded_table(
    const ShardedTensor& weight, const char* caller, const char* module) {
  TORCH_CHECK_TYPE(
      weight.defined(),
      "[",
      caller,
      "] weight needs to be ShardedTensor, and defined");
  TORCH_CHECK_VALUE(
      weight.size().size() == 2,
      "[",
      caller,
      "] Weight needs to have exactly 2 dims, not ",
      weight.size().size());
  TORCH_CHECK_VALUE(
      weight.sharding_spec() != nullptr,
      "[",
      caller,
      "] Only ChunkShardingSpec supported for ShardedTensor ops! The weight "
      "is placed as ",
      weight);
  const auto& spec = *weight.sharding_spec();
  const bool several = names_a_rank_twice(spec);
  TORCH_CHECK_VALUE(
      !several && !weight.dtensor().mesh().local_positions().empty(),
      "[",
      caller,
      "] Only one local shard supported! ",
      spec.str(),
      several ? " gives a rank several" : " gives this rank none");
  TORCH_CHECK(
      spec.dim == 0 || spec.dim == 1,
      "[",
      caller,
      "] ",
      module,
      " weight sharded on dim ",
      spec.dim,
      " not supported!");
  TORCH_CHECK_TYPE(
      at::isFloatingType(weight.dtensor().scalar_type()),
      "[",
      caller,
      "] the weight must be float, double, half or bfloat16, not ",
      weight.dtensor().scalar_type());
}

LookupQuery checked_query(
    const ShardedTensor& weight, const sharded::EmbeddingFuncOptions& options) {
  check_flags(
      kEmbeddingName,
      options.scale_grad_by_freq,
      options.sparse,
      options.max_norm);
  LookupQuery query;
  query.caller = &kShardedEmbeddingCaller;
  query.padding_idx =
      checked_padding(kEmbeddingName, options.padding_idx, weight.size(0));
  query.pools = false;
  query.max_norm = options.max_norm;
  query.norm_type = options.norm_type;
  query.step = checked_step(kEmbeddingName, options.update, weight);
  query.strategy =
      BagStrategy::Rows;  // a bag of one is never longer than its row
  return query;
}

LookupQuery checked_query(
    const ShardedTensor& weight,
    const sharded::EmbeddingBagFuncOptions& options) {
  LookupQuery query;
  query.mode = bag_mode_of(options.mode);
  check_flags(
      kBagName, options.scale_grad_by_freq, options.sparse, options.max_norm);
  query.padding_idx =
      checked_padding(kBagName, options.padding_idx, weight.size(0));
  query.max_norm = options.max_norm;
  query.norm_type = options.norm_type;
  query.step = checked_step(kBagName, options.update, weight);
  query.strategy = options.strategy;
  return query;
}

}  // namespace tessera::detail
