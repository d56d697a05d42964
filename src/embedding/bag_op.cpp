#include "embedding/bag_op.h"

#include <ATen/ops/empty.h>

#include "dispatch/boundary_node.h"
#include "embedding/bag_max.h"
#include "embedding/embedding.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

void check_bag_table(const at::Tensor& weight) {
  TORCH_CHECK_VALUE(
      weight.dim() == 2,
      "[embedding_bag] expected a table of two dimensions, but got one of "
      "shape ",
      weight.sizes());
}

BagPart part_of(const at::Tensor& weight, const BagLocal& local) {
  return {local.first_row, local.table_rows.value_or(weight.size(0))};
}

at::Tensor empty_argmax(const at::Tensor& weight) {
  return at::empty({0}, weight.options().dtype(at::kInt));
}

// What both gradients are given. The table is read for its layout and size, and
// by the gradient of per_sample_weights for its values.
struct BagGrad {
  at::Tensor grad;
  at::Tensor indices;
  at::Tensor offsets;
  at::Tensor weight;
};

// The gradient of the table.
struct BagBackward {
  static constexpr const char* kSchema =
      "bag_backward(Tensor grad, Tensor indices, Tensor offsets, "
      "Tensor weight, Tensor? per_sample_weights=None, Tensor? "
      "argmax=None, " TESSERA_BAG_OPTIONS ") -> Tensor";
  using Result = at::Tensor;
  struct Args {
    BagGrad of;
    std::optional<at::Tensor> per_sample_weights;
    std::optional<at::Tensor> argmax;
    BagArgs options;
    BagLocal local;
  };

  static at::Tensor on_data(const Args& args) {
    const auto& [grad, indices, offsets, weight] = args.of;
    TORCH_CHECK_VALUE(
        grad.dim() == 2 && grad.size(1) == weight.size(1),
        "[tessera.bag_backward] expected a gradient with ",
        weight.size(1),
        " columns, but got one of shape ",
        grad.sizes());
    const auto backward = args.options.sparse ? embedding_bag_sparse_backward
                                              : embedding_bag_dense_backward;
    const BagMode mode = args.options.mode;
    return backward(
        {grad,
         part_of(weight, args.local),
         local_bags(
             {indices, offsets, args.per_sample_weights},
             args.options,
             args.local),
         mode,
         mode == BagMode::kMax ? args.argmax : std::nullopt},
        weight.size(0));
  }
  static at::Tensor on_meta(const Args& args) {
    return at::empty(args.of.weight.sizes(), args.of.grad.options());
  }
};

// The gradient of per_sample_weights.
struct BagWeightsBackward {
  static constexpr const char* kSchema =
      "bag_weights_backward(Tensor grad, Tensor indices, Tensor offsets, "
      "Tensor weight, " TESSERA_BAG_OPTIONS ") -> Tensor";
  using Result = at::Tensor;
  struct Args {
    BagGrad of;
    BagArgs options;
    BagLocal local;
  };

  static at::Tensor on_data(const Args& args) {
    // A table is not converted for the rows that are looked up.
    const auto& [grad, indices, offsets, weight] = args.of;
    return embedding_bag_weights_backward(
               grad.to(weight.scalar_type()),
               weight,
               part_of(weight, args.local),
               local_bags(
                   {indices, offsets, std::nullopt}, args.options, args.local))
        .to(grad.scalar_type());
  }
  static at::Tensor on_meta(const Args& args) {
    return at::empty(args.of.indices.sizes(), args.of.grad.options());
  }
};

}  // namespace

BagLocal bags_at(
    const Spec& table, const Spec& batch, int64_t bags, int64_t position) {
  const auto rows =
      local_range(table.sizes[0], 0, table.mesh, table.placements, position);
  const auto held =
      local_range(bags, 0, table.mesh, batch.placements, position);
  const auto places =
      local_range(batch.sizes[0], 0, table.mesh, batch.placements, position);
  return {rows.begin, table.sizes[0], held.begin, held.size, places.begin};
}

BagIndices local_bags(
    const BagTensors& bags, const BagArgs& args, const BagLocal& local) {
  const at::Tensor& offsets = bags.offsets;
  BagIndices input{
      .indices = bags.indices,
      .offsets = offsets,
      .include_last_offset = args.include_last_offset,
      .padding_idx = args.padding_idx,
      .per_sample_weights = bags.per_sample_weights};
  const int64_t all = all_bags(offsets, args.include_last_offset);
  if (local.bag_count.value_or(all) != all || local.first_index != 0) {
    input.offsets = offsets.narrow(0, local.first_bag, *local.bag_count)
                        .sub(local.first_index);
    input.include_last_offset = false;
  }
  return input;
}

BagMax plain_bag(const Bag::Args& args, BagEmpty empty) {
  check_bag_table(args.weight);
  return pool_part(
      args.weight,
      part_of(args.weight, args.local),
      local_bags(args.bags, args.options, args.local),
      args.options.mode,
      empty,
      args.dtype);
}

BagMax pool_part(
    const at::Tensor& weight,
    const BagPart& part,
    const BagIndices& bags,
    BagMode mode,
    BagEmpty empty,
    std::optional<at::ScalarType> dtype) {
  if (mode == BagMode::kMax) {
    return embedding_bag_max_part(weight, part, bags, empty);
  }
  return {embedding_bag_part(weight, part, bags, mode, dtype), at::Tensor()};
}

BagGradient bag_gradient(
    const at::Tensor& grad,
    const BagPart& part,
    BagIndices bags,
    BagMode mode,
    const at::Tensor& argmax) {
  if (auto& weights = bags.per_sample_weights; weights.has_value()) {
    weights = weights->to(grad.scalar_type());
  }
  return {
      grad,
      part,
      std::move(bags),
      mode,
      mode == BagMode::kMax ? std::optional(argmax) : std::nullopt};
}

namespace {

struct BagOp : Bag {
  static Result on_data(const Args& args) {
    auto pooled = plain_bag(args, BagEmpty::kZero);
    return {
        std::move(pooled.values),
        pooled.argmax.defined() ? std::move(pooled.argmax)
                                : empty_argmax(args.weight)};
  }

  static Result on_meta(const Args& args) {
    check_bag_table(args.weight);
    const int64_t bags = args.local.bag_count.value_or(
        all_bags(args.bags.offsets, args.options.include_last_offset));
    const auto pooled = at::empty(
        {bags, args.weight.size(1)},
        args.weight.options().dtype(
            args.dtype.value_or(args.weight.scalar_type())));
    return {
        pooled,
        args.options.mode == BagMode::kMax
            ? at::empty(pooled.sizes(), pooled.options().dtype(at::kInt))
            : empty_argmax(args.weight)};
  }

  // Below autograd: maxima over a row-wise sharded table are merged (bag_max.h)
  // before any rule is asked.
  static Result run(const Args& args) {
    return shards_rows_of_max(args) ? max_over_rows(args) : call_op<Bag>(args);
  }

  static OpInputs inputs(const Args& args) {
    const auto& weights = args.bags.per_sample_weights;
    return weights.has_value() ? OpInputs{args.weight, *weights}
                               : OpInputs{args.weight};
  }

  static void save(SavedContext* ctx, const Args& args, const Result& result) {
    // The gradient of per_sample_weights needs the table's values; that of the
    // table only its layout: then it may be written before the backward pass.
    const auto& [indices, offsets, weights] = args.bags;
    const bool needs_values = weights.has_value() && weights->requires_grad();
    const auto& argmax = std::get<1>(result);
    ctx->save_for_backward(
        {indices,
         offsets,
         weights.value_or(at::Tensor()),
         argmax,
         needs_values ? args.weight : at::Tensor()});
    ctx->mark_non_differentiable({argmax});
    keep(ctx, Args{args.weight.detach(), {}, args.options, args.local});
  }

  static Gradients backward(SavedContext* ctx, const Gradients& grads) {
    const auto& args = kept<Args>(ctx);
    const auto saved = ctx->get_saved_variables();
    const auto only_once = [&](const at::Tensor& gradient,
                               const at::Tensor& factor) {
      refuse_second_derivative(
          gradient,
          torch::autograd::collect_next_edges(grads[0], factor),
          "[embedding_bag] the gradient of bags cannot be differentiated "
          "again");
    };
    const bool weighted = saved[2].defined();
    Gradients result(weighted ? 2 : 1);
    if (ctx->needs_input_grad(0)) {
      result[0] = call_op<BagBackward>(
          {{grads[0], saved[0], saved[1], args.weight},
           weighted ? std::optional(saved[2]) : std::nullopt,
           args.options.mode == BagMode::kMax ? std::optional(saved[3])
                                              : std::nullopt,
           args.options,
           args.local});
      only_once(result[0], saved[2]);
    }
    if (saved[4].defined()) {
      result[1] = call_op<BagWeightsBackward>(
          {{grads[0], saved[0], saved[1], saved[4]}, args.options, args.local});
      only_once(result[1], saved[4]);
    }
    return result;
  }
};

}  // namespace

Bag::Result recorded_bag(const Bag::Args& args) {
  return differentiable_op<BagOp>(args);
}

void register_bag_op(OpRegistry& ops) {
  define_op<BagOp>(ops);
  define_op<BagBackward>(ops);
  define_op<BagWeightsBackward>(ops);
}

}  // namespace tessera::detail
