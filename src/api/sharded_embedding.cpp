#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <functional>

#include "api/sharded_checks.h"
#include "api/sharded_ranks.h"
#include "comm/comm_event.h"
#include "embedding/table_lookup.h"
#include "tessera/sharded.h"

namespace tessera::sharded {

namespace {

using detail::LocalError;
using detail::LookupInput;
using detail::LookupQuery;

// One input is this process's rank's. Where several ranks live here, it would
// have to be shared out or looked up by each: say which.
void check_one_rank(const ShardedTensor& weight, const char* caller) {
  TORCH_CHECK(
      weight.dtensor().mesh().local_positions().size() == 1,
      "[",
      caller,
      "] all ranks live in this process: give a list with an input for each");
}

// Looks up what all local ranks want, in the order of their ranks. Checks each
// input first; a rank whose input is wrong takes part without any, so that the
// others learn of it.
std::vector<at::Tensor> look_up(
    const ShardedTensor& weight,
    size_t count,
    const char* caller,
    const std::function<LookupQuery()>& make_query,
    const std::function<LookupInput(size_t)>& make_input) {
  const auto table = weight.dtensor();
  const auto places = detail::places_by_rank(table.mesh());
  TORCH_CHECK_VALUE(
      count == places.size(),
      "[",
      caller,
      "] expected an input for each of the ",
      places.size(),
      " ranks that live in this process, but ",
      count,
      " were given");
  LookupQuery query;
  std::vector<LookupInput> by_rank;
  LocalError error = detail::local_error_of([&] { query = make_query(); });
  for (size_t i = 0; i < count; ++i) {
    by_rank.push_back(detail::input_unless(
        error, table.device(), [&] { return make_input(i); }));
  }
  std::vector<LookupInput> by_position;
  by_position.reserve(places.size());
  for (const size_t place : places) {
    by_position.push_back(by_rank[place]);
  }
  const auto& spec = detail::distributed_meta(table).spec;
  const detail::CommCauseGuard cause(query.caller->cause, spec);
  const auto found = detail::look_up(
      table, {spec, /*mesh_dim=*/0, std::move(by_position), query}, error);
  std::vector<at::Tensor> out(found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    out[places[i]] = found[i];
  }
  return out;
}

}  // namespace

at::Tensor embedding(
    const at::Tensor& input,
    const ShardedTensor& weight,
    const EmbeddingFuncOptions& options) {
  detail::check_sharded_table(weight, "embedding", "nn.Embedding");
  check_one_rank(weight, "embedding");
  return embedding(at::TensorList(input), weight, options)[0];
}

std::vector<at::Tensor> embedding(
    at::TensorList inputs,
    const ShardedTensor& weight,
    const EmbeddingFuncOptions& options) {
  detail::check_sharded_table(weight, "embedding", "nn.Embedding");
  return look_up(
      weight,
      inputs.size(),
      "embedding",
      [&] { return detail::checked_query(weight, options); },
      [&](size_t i) { return detail::checked_rows(inputs[i], weight); });
}

at::Tensor embedding_bag(
    const at::Tensor& input,
    const ShardedTensor& weight,
    const std::optional<at::Tensor>& offsets,
    const EmbeddingBagFuncOptions& options) {
  detail::check_sharded_table(weight, "embedding_bag", "nn.EmbeddingBag");
  check_one_rank(weight, "embedding_bag");
  EmbeddingBagFuncOptions common = options;
  common.per_sample_weights = std::nullopt;
  const BagInput mine{input, offsets, options.per_sample_weights};
  return embedding_bag(mine, weight, common)[0];
}

std::vector<at::Tensor> embedding_bag(
    c10::ArrayRef<BagInput> inputs,
    const ShardedTensor& weight,
    const EmbeddingBagFuncOptions& options) {
  detail::check_sharded_table(weight, "embedding_bag", "nn.EmbeddingBag");
  TORCH_CHECK_VALUE(
      !options.per_sample_weights.has_value(),
      "[embedding_bag] a list of inputs has per_sample_weights in each "
      "BagInput, "
      "not in the options");
  return look_up(
      weight,
      inputs.size(),
      "embedding_bag",
      [&] { return detail::checked_query(weight, options); },
      [&](size_t i) {
        return detail::checked_bags(inputs[i], weight, options);
      });
}

}  // namespace tessera::sharded
