// The gradients of tessera::bag, by its table and by per_sample_weights.
#include <torch/csrc/autograd/custom_function.h>

#include "dispatch/grad_layout.h"
#include "dispatch/typed_op.h"
#include "embedding/bag_max.h"
#include "embedding/bag_ops.h"
#include "embedding/embedding.h"

namespace tessera::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalInt = std::optional<int64_t>;
using OptionalTensor = std::optional<at::Tensor>;

using BagOp = std::tuple<at::Tensor, at::Tensor>(
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const OptionalTensor&,
    int64_t,
    bool,
    int64_t,
    bool,
    int64_t,
    OptionalInt,
    int64_t,
    OptionalInt,
    int64_t);
using BagBackwardOp = at::Tensor(
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const OptionalTensor&,
    const OptionalTensor&,
    int64_t,
    bool,
    int64_t,
    bool,
    bool,
    int64_t,
    OptionalInt,
    int64_t,
    OptionalInt,
    int64_t);
using BagWeightsBackwardOp = at::Tensor(
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    bool,
    int64_t,
    bool,
    int64_t,
    OptionalInt,
    int64_t,
    OptionalInt,
    int64_t);

// Below autograd.
Bags pooled(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const OptionalTensor& per_sample_weights,
    const BagArgs& args,
    const BagLocal& local) {
  static const auto op = typed_op<BagOp>("tessera::bag");
  at::AutoDispatchBelowADInplaceOrView below;
  if (cuts_rows_of_max(weight, args)) {
    return max_over_rows(weight, indices, offsets, args);
  }
  auto [result, argmax] = op.call(
      weight,
      indices,
      offsets,
      per_sample_weights,
      static_cast<int64_t>(args.mode),
      args.include_last_offset,
      args.padding_idx,
      args.whole_bags,
      local.first_row,
      local.table_rows,
      local.first_bag,
      local.bag_count,
      local.first_index);
  return {std::move(result), std::move(argmax)};
}

// What a backward pass needs besides tensors.
struct Saved : torch::CustomClassHolder {
  BagArgs args;
  BagLocal local;
};

class Bag : public torch::autograd::Function<Bag> {
 public:
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& weight,
      const at::Tensor& indices,
      const at::Tensor& offsets,
      const OptionalTensor& per_sample_weights,
      const BagArgs& args,
      const BagLocal& local) {
    const auto bags =
        pooled(weight, indices, offsets, per_sample_weights, args, local);
    auto saved = c10::make_intrusive<Saved>();
    saved->args = args;
    saved->local = local;
    ctx->saved_data["saved"] = c10::IValue::make_capsule(std::move(saved));
    // Of the table a gradient by per_sample_weights needs the values, and one
    // by the table the layout alone: then it may be written before the
    // backward.
    const bool needs_values =
        per_sample_weights.has_value() && per_sample_weights->requires_grad();
    ctx->saved_data["like"] = weight.detach();
    ctx->save_for_backward(
        {indices,
         offsets,
         per_sample_weights.value_or(at::Tensor()),
         bags.argmax,
         needs_values ? weight : at::Tensor()});
    ctx->mark_non_differentiable({bags.argmax});
    return {bags.pooled, bags.argmax};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    static const auto by_table =
        typed_op<BagBackwardOp>("tessera::bag_backward");
    static const auto by_weights =
        typed_op<BagWeightsBackwardOp>("tessera::bag_weights_backward");
    const auto& context =
        *static_cast<Saved*>(ctx->saved_data["saved"].toCapsule().get());
    const BagArgs& args = context.args;
    const BagLocal& local = context.local;
    const auto saved = ctx->get_saved_variables();
    const auto& grad = grads[0];
    TORCH_CHECK_NOT_IMPLEMENTED(
        !(at::GradMode::is_enabled() && grad.requires_grad()),
        "[embedding_bag] the gradient of bags cannot be differentiated again");
    const OptionalTensor per_sample_weights =
        saved[2].defined() ? OptionalTensor(saved[2]) : std::nullopt;
    at::Tensor table_grad;
    at::Tensor weights_grad;
    if (ctx->needs_input_grad(0)) {
      table_grad = by_table.call(
          grad,
          saved[0],
          saved[1],
          ctx->saved_data["like"].toTensor(),
          per_sample_weights,
          args.mode == BagMode::kMax ? OptionalTensor(saved[3]) : std::nullopt,
          static_cast<int64_t>(args.mode),
          args.include_last_offset,
          args.padding_idx,
          args.whole_bags,
          args.sparse,
          local.first_row,
          local.table_rows,
          local.first_bag,
          local.bag_count,
          local.first_index);
    }
    if (saved[4].defined()) {
      weights_grad = by_weights.call(
          grad,
          saved[0],
          saved[1],
          saved[4],
          args.include_last_offset,
          args.padding_idx,
          args.whole_bags,
          local.first_row,
          local.table_rows,
          local.first_bag,
          local.bag_count,
          local.first_index);
    }
    return {
        table_grad,
        at::Tensor(),
        at::Tensor(),
        weights_grad,
        at::Tensor(),
        at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor> bag_autograd(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const OptionalTensor& per_sample_weights,
    int64_t mode,
    bool include_last_offset,
    int64_t padding_idx,
    bool whole_bags,
    int64_t first_row,
    OptionalInt table_rows,
    int64_t first_bag,
    OptionalInt bag_count,
    int64_t first_index) {
  auto bags =
      bag(weight,
          indices,
          offsets,
          per_sample_weights,
          {static_cast<BagMode>(mode),
           include_last_offset,
           padding_idx,
           whole_bags},
          {first_row, table_rows, first_bag, bag_count, first_index});
  return {std::move(bags.pooled), std::move(bags.argmax)};
}

}  // namespace

Bags bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const OptionalTensor& per_sample_weights,
    const BagArgs& args,
    const BagLocal& local) {
  if (records(weight) ||
      (per_sample_weights.has_value() && records(*per_sample_weights))) {
    keep_grad_layouts(weight);
    if (per_sample_weights.has_value()) {
      keep_grad_layouts(*per_sample_weights);
    }
    auto results =
        Bag::apply(weight, indices, offsets, per_sample_weights, args, local);
    return {std::move(results[0]), std::move(results[1])};
  }
  return pooled(weight, indices, offsets, per_sample_weights, args, local);
}

void register_bag_gradients(OpRegistry& ops) {
  ops.gradient("bag", &bag_autograd);
}

}  // namespace tessera::detail
