#include "embedding/bag_lookup.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "comm/comm_event.h"
#include "core/hash.h"
#include "dispatch/grad_layout.h"
#include "dispatch/run_by_rule.h"
#include "embedding/bag_columns.h"
#include "embedding/bag_exchange.h"

namespace tessera::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

c10::intrusive_ptr<BagVisit> make_visit(
    SpecPtr table,
    int64_t mesh_dim,
    std::vector<RankBags> bags,
    const BagQuery& query) {
  const Placement& cut = table->placements[mesh_dim];
  TORCH_INTERNAL_ASSERT(
      table->dim() == 2 &&
      (cut.is_shard(0) || (cut.is_shard(1) && table->mesh.ndim() == 1)));
  if (cut.is_shard(0) && table->mesh.size() > 1) {
    return make_bag_exchange(
        std::move(table), mesh_dim, std::move(bags), query);
  }
  return make_bag_columns(std::move(table), std::move(bags), query);
}

BagWants wants_of(const at::Tensor& weight, const std::vector<RankBags>& bags) {
  if (!at::GradMode::is_enabled()) {
    return {};
  }
  const bool per_sample_weights =
      std::any_of(bags.begin(), bags.end(), [](const RankBags& rank) {
        return rank.weights.defined() && rank.weights.requires_grad();
      });
  return {per_sample_weights || weight.requires_grad(), per_sample_weights};
}

class LookupBags : public torch::autograd::Function<LookupBags> {
 public:
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& weight,
      at::TensorList /*per_sample_weights*/,
      c10::intrusive_ptr<BagVisit> visit) {
    auto pooled = visit->pool(weight);
    // The per_sample_weights' gradients read the table again: it must not have
    // changed.
    if (visit->weights_need_grad()) {
      ctx->save_for_backward({weight});
    }
    // A step takes the table as it is by then: another lookup of the same pass
    // may have moved it.
    if (visit->query().step.has_value()) {
      ctx->saved_data["table"] = weight;
    }
    ctx->saved_data["visit"] = c10::IValue::make_capsule(std::move(visit));
    return pooled;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& visit =
        *static_cast<BagVisit*>(ctx->saved_data["visit"].toCapsule().get());
    Shards local;
    for (const auto& grad : grads) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          !(at::GradMode::is_enabled() && grad.requires_grad()),
          "[",
          visit.query().caller,
          "] the backward of bags that ranks exchange cannot be "
          "differentiated again: leave create_graph out");
      local.push_back(grad.contiguous());
    }
    const CommCauseGuard cause("tessera::embedding_bag_backward");
    const auto saved = ctx->get_saved_variables();
    at::Tensor table = saved.empty() ? at::Tensor() : saved[0];
    if (visit.query().step.has_value()) {
      table = ctx->saved_data["table"].toTensor();
    }
    if (visit.query().step.has_value() && ctx->needs_input_grad(0)) {
      begin_write(table, visit.query().caller);
    }
    auto result = visit.differentiate(local, table, ctx->needs_input_grad(0));
    if (visit.query().step.has_value() && ctx->needs_input_grad(0)) {
      table.unsafeGetTensorImpl()->bump_version();
    }
    variable_list all;
    all.push_back(
        result.table.empty()
            ? at::Tensor()
            : make_distributed(visit.table(), std::move(result.table)));
    for (size_t i = 0; i < result.weights.size(); ++i) {
      if (visit.bags()[i].weights.defined()) {
        all.push_back(std::move(result.weights[i]));
      }
    }
    all.emplace_back();
    return all;
  }
};

}  // namespace

int64_t BagQuery::fingerprint() const {
  uint64_t hash = hash_combine(0, static_cast<uint64_t>(mode));
  hash = hash_combine(hash, static_cast<uint64_t>(padding_idx));
  hash = hash_combine(hash, static_cast<uint64_t>(reads_padding));
  hash = hash_combine(hash, static_cast<uint64_t>(max_norm.has_value()));
  hash = hash_combine(hash, std::bit_cast<uint64_t>(max_norm.value_or(0)));
  hash = hash_combine(hash, std::bit_cast<uint64_t>(norm_type));
  hash = hash_combine(hash, static_cast<uint64_t>(sparse));
  hash = hash_combine(hash, static_cast<uint64_t>(step.has_value()));
  hash = hash_combine(hash, std::bit_cast<uint64_t>(step.value_or(0)));
  hash = hash_combine(hash, offsets);
  return static_cast<int64_t>(
      hash_combine(hash, static_cast<uint64_t>(strategy)));
}

BagVisit::BagVisit(
    SpecPtr table,
    int64_t mesh_dim,
    std::vector<RankBags> bags,
    const BagQuery& query)
    : table_(std::move(table)),
      mesh_dim_(mesh_dim),
      bags_(std::move(bags)),
      query_(query) {
  TORCH_INTERNAL_ASSERT(bags_.size() == table_->mesh.local_positions().size());
}

at::ScalarType BagVisit::index_dtype() const {
  return rows() <= std::numeric_limits<int32_t>::max() ? at::kInt : at::kLong;
}

at::ScalarType BagVisit::sum_dtype() const {
  return accumulate_dtype(table_->dtype);
}

RankBags no_bags(at::Device device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  return {at::empty({0}, options), at::zeros({1}, options), at::Tensor()};
}

std::vector<at::Tensor> lookup_bags(
    const at::Tensor& weight,
    int64_t mesh_dim,
    std::vector<RankBags> bags,
    const BagQuery& query,
    const LocalError& error) {
  const CommCauseGuard cause("tessera::embedding_bag");
  const BagWants wants = wants_of(weight, bags);
  std::vector<at::Tensor> per_sample_weights;
  for (auto& rank : bags) {
    if (rank.weights.defined()) {
      per_sample_weights.push_back(rank.weights);
      rank.weights = rank.weights.detach().contiguous();
    }
  }
  const auto visit = make_visit(
      distributed_meta(weight).spec, mesh_dim, std::move(bags), query);
  visit->meet(error, wants);
  check_current(weight);
  keep_grad_layouts(weight);
  keep_grad_layouts(per_sample_weights);
  return LookupBags::apply(weight, at::TensorList(per_sample_weights), visit);
}

}  // namespace tessera::detail
