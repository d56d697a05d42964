#include "embedding/table_lookup.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <bit>

#include "comm/comm_event.h"
#include "core/hash.h"
#include "dispatch/boundary_node.h"
#include "dispatch/grad_layout.h"
#include "dispatch/own_op.h"
#include "dispatch/run_by_rule.h"
#include "embedding/make_lookup.h"
#include "embedding/renorm.h"
#include "tessera/language.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

const LookupCaller kEmbeddingCaller{
    "embedding",
    "aten::embedding",
    "aten::embedding_backward",
    "hold an EmbeddingScope with LookupStrategy::Gather",
    /*asks_alike=*/true};
const LookupCaller kShardedEmbeddingCaller{
    "embedding",
    "tessera::embedding_bag",
    "tessera::embedding_bag_backward",
    "leave create_graph out"};
const LookupCaller kBagCaller{
    "embedding_bag",
    "tessera::embedding_bag",
    "tessera::embedding_bag_backward",
    "leave create_graph out"};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class LookupNode : public torch::autograd::Function<LookupNode> {
 public:
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& weight,
      at::TensorList /*per_sample_weights*/,
      c10::intrusive_ptr<TableLookup> lookup) {
    auto results = lookup->forward(weight);
    // The gradients of per_sample_weights read the table again: it must not
    // have changed either.
    auto saved = lookup->given();
    saved.push_back(lookup->weights_need_grad() ? weight : at::Tensor());
    ctx->save_for_backward(std::move(saved));
    // A step takes the table as it is by then: another lookup of the same pass
    // may have moved it.
    if (lookup->query().step.has_value()) {
      ctx->saved_data["table"] = weight;
    }
    ctx->saved_data["lookup"] = c10::IValue::make_capsule(std::move(lookup));
    return results;
  }

  static variable_list backward(
      AutogradContext* ctx, const variable_list& grads) {
    auto& lookup =
        *static_cast<TableLookup*>(ctx->saved_data["lookup"].toCapsule().get());
    const LookupQuery& query = lookup.query();
    Shards local;
    for (const auto& grad : grads) {
      local.push_back(grad.detach().contiguous());
    }
    const CommCauseGuard cause(query.caller->backward_cause, lookup.gradient());
    const bool table_needs_grad = ctx->needs_input_grad(0);
    at::Tensor table = ctx->get_saved_variables().back();
    const bool steps = query.step.has_value() && table_needs_grad;
    if (query.step.has_value()) {
      table = ctx->saved_data["table"].toTensor();
    }
    if (steps) {
      begin_write(table, query.caller->name);
    }
    auto result = lookup.backward({local, table, table_needs_grad});
    if (steps) {
      end_write(table, query.caller->name);
      table.unsafeGetTensorImpl()->bump_version();
    }
    variable_list all;
    all.push_back(
        result.table.empty()
            ? at::Tensor()
            : make_distributed(lookup.gradient(), std::move(result.table)));
    for (size_t i = 0; i < local.size(); ++i) {
      if (lookup.has_weights(i)) {
        all.push_back(
            result.per_sample_weights.empty()
                ? at::Tensor()
                : std::move(result.per_sample_weights[i]));
      }
    }
    refuse_second_derivatives(lookup, grads, all);
    all.emplace_back();
    return all;
  }

 private:
  // The gradients follow from `grads`, the table's also from all ranks'
  // per_sample_weights, and theirs from the table.
  static void refuse_second_derivatives(
      const TableLookup& lookup,
      const variable_list& grads,
      const variable_list& gradients) {
    if (!at::GradMode::is_enabled()) {
      return;
    }
    const auto& caller = *lookup.query().caller;
    const auto text = c10::str(
        "[",
        caller.name,
        "] the backward of an exchange cannot be differentiated again: ",
        spell(caller.instead));
    // Those of the table and of the per_sample_weights.
    const auto given = torch::autograd::get_current_node()->next_edges();
    for (size_t i = 0; i < gradients.size(); ++i) {
      auto inputs = torch::autograd::collect_next_edges(at::TensorList(grads));
      const auto weights = given.begin() + 1;
      inputs.insert(
          inputs.end(),
          i == 0 ? weights : given.begin(),
          i == 0 ? given.end() : weights);
      refuse_second_derivative(
          gradients[i],
          std::move(inputs),
          text,
          /*on_another_rank=*/i == 0 && lookup.weights_need_grad());
    }
  }
};

}  // namespace

int64_t LookupQuery::fingerprint() const {
  uint64_t hash = hash_combine(0, static_cast<uint64_t>(mode));
  const auto add = [&](uint64_t value) { hash = hash_combine(hash, value); };
  add(static_cast<uint64_t>(padding_idx));
  add(static_cast<uint64_t>(pools));
  add(static_cast<uint64_t>(max_norm.has_value()));
  add(std::bit_cast<uint64_t>(max_norm.value_or(0)));
  add(std::bit_cast<uint64_t>(norm_type));
  add(static_cast<uint64_t>(sparse));
  add(static_cast<uint64_t>(step.has_value()));
  add(std::bit_cast<uint64_t>(step.value_or(0)));
  add(offsets);
  add(static_cast<uint64_t>(strategy));
  return static_cast<int64_t>(hash);
}

LookupInput no_input(at::Device device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  return {
      .indices = at::empty({0}, options),
      .offsets = at::zeros({1}, options),
      .include_last_offset = true};
}

LookupInput input_unless(
    LocalError& error,
    at::Device device,
    c10::function_ref<LookupInput()> make) {
  LookupInput input;
  if (error.text.empty()) {
    error = local_error_of([&] { input = make(); });
  }
  return error.text.empty() ? input : no_input(device);
}

at::ScalarType TableLookup::sum_dtype() const {
  return accumulate_dtype(table().dtype);
}

Range TableLookup::held_rows(size_t local) const {
  const auto& mesh = table().mesh;
  return local_range(
      rows(), 0, mesh, table().placements, mesh.local_positions()[local]);
}

std::vector<at::Tensor> TableLookup::given() const {
  auto tensors = request_.parts_of;
  for (const auto& input : request_.inputs) {
    tensors.push_back(input.indices);
    tensors.push_back(input.offsets);
    tensors.push_back(input.per_sample_weights.value_or(at::Tensor()));
  }
  return tensors;
}

std::optional<at::Tensor> TableLookup::weights_of(size_t local) const {
  if (!settled_.per_sample_weights) {
    return std::nullopt;
  }
  const auto& mine = input(local);
  return mine.per_sample_weights.has_value()
             ? mine.per_sample_weights
             : at::ones(
                   mine.indices.sizes(),
                   mine.indices.options().dtype(table().dtype));
}

at::Tensor TableLookup::part_gradient(
    size_t local, const at::Tensor& given) const {
  const auto backward = query().sparse ? embedding_bag_sparse_backward
                                       : embedding_bag_dense_backward;
  return backward(reaching(local, given), held_rows(local).size);
}

TableLookup::Gradients TableLookup::backward(const BackwardPass& pass) const {
  const auto& [grads, weight, table_needs_grad] = pass;
  const auto given = to_owners(grads);
  Gradients result;
  if (settled_.weights_need_grad) {
    result.per_sample_weights =
        weight_gradients(grads, given, current_shards(weight));
  }
  for (size_t i = 0; table_needs_grad && i < given.size(); ++i) {
    if (query().step.has_value()) {
      embedding_bag_step_(
          current_shards(weight)[i], reaching(i, given[i]), *query().step);
    } else {
      result.table.push_back(part_gradient(i, given[i]).to(table().dtype));
    }
  }
  return result;
}

std::vector<at::Tensor> TableLookup::forward(const at::Tensor& weight) {
  if (query().max_norm.has_value() && !request_.inputs.empty()) {
    Shards all;
    for (size_t i = 0; i < request_.inputs.size(); ++i) {
      all.push_back(looked_up(i));
      // Ranks keep their padding to themselves; one device would scale its row.
      if (settled_.padding) {
        all[i] = at::cat(
            {all[i], at::full({1}, query().left_out(), all[i].options())});
      }
    }
    renorm_looked_up_(weight, all, query());
  }
  return look_up(current_shards(weight));
}

std::vector<at::Tensor> look_up(
    const at::Tensor& weight, LookupRequest request, const LocalError& error) {
  const Spec& table = *request.table;
  const Placement& sharding = table.placements[request.mesh_dim];
  TORCH_INTERNAL_ASSERT(
      table.dim() == 2 &&
      request.inputs.size() == table.mesh.local_positions().size() &&
      (sharding.is_shard(0) ||
       (sharding.is_shard(1) && table.mesh.ndim() == 1)));
  std::vector<at::Tensor> weights;
  for (auto& input : request.inputs) {
    input.padding_idx = request.query.left_out();
    if (auto& mine = input.per_sample_weights; mine.has_value()) {
      request.wanted.per_sample_weights |= records(*mine);
      weights.push_back(*mine);
      mine = mine->detach().contiguous();
    }
  }
  refuse_tangents(request.query.caller->name, weight);
  refuse_tangents(request.query.caller->name, weights);
  request.wanted.any = request.wanted.per_sample_weights || records(weight);
  if (!request.gradient) {
    request.gradient = request.table;
  }
  // A table on one rank has all columns of all rows, however it is sharded.
  const auto make = sharding.is_shard(0) && table.mesh.size() > 1
                        ? make_row_wise_lookup
                        : make_column_lookup;
  auto lookup = make(std::move(request), error);
  current_shards(weight);
  keep_grad_layouts(weight);
  keep_grad_layouts(weights);
  return LookupNode::apply(weight, at::TensorList(weights), std::move(lookup));
}

}  // namespace tessera::detail
