// Bags as compositions of ATen's ops.
#include <ATen/OpMathType.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "kernels/bag/bag_kernels.h"
#include "kernels/bag/bag_reader.h"
#include "kernels/lookup/embedding_index.h"

namespace tessera::detail {

namespace {

// The entries that a part holds, as tensors.
struct Held {
  int64_t bags;
  at::Tensor counts;  // [bags]: entries of the whole bags, but padding
  at::Tensor rows;    // [held]
  at::Tensor bag;     // [held]
  at::Tensor places;  // [held]
  // Of all entries: their bag, and whether they are no padding.
  at::Tensor bag_of_all;
  at::Tensor counted;
};

Held held_entries(const BagIndices& input, int64_t rows, const BagPart* part) {
  // Offsets are few; reading them here allows to check them.
  BagIndices on_cpu = input;
  on_cpu.offsets = input.offsets.cpu();
  const at::Tensor bounds = bag_bounds(on_cpu);
  const int64_t bags = bounds.numel() - 1;
  const at::Tensor ends = bounds.to(input.indices.device());
  const at::Tensor lengths = ends.slice(0, 1).sub(ends.slice(0, 0, bags));
  const at::Tensor bag = at::repeat_interleave(lengths);
  const at::Tensor indices =
      input.indices.slice(0, 0, bounds.const_data_ptr<int64_t>()[bags])
          .to(at::kLong);
  if (part != nullptr) {
    const at::Tensor bad =
        indices.lt(0).logical_or(indices.ge(part->total)).nonzero();
    if (bad.size(0) > 0) {
      const auto index = indices[bad[0][0].item<int64_t>()].item<int64_t>();
      throw_outside_bag_table(index, part->total);
    }
  }
  const at::Tensor counted = indices.ne(input.padding_idx);
  Held held;
  held.bags = bags;
  held.counts = at::zeros({bags}, ends.options())
                    .index_add_(0, bag, counted.to(at::kLong));
  if (part == nullptr) {
    return held;
  }
  const at::Tensor here = counted.logical_and(indices.ge(part->first))
                              .logical_and(indices.lt(part->first + rows));
  held.places = here.nonzero().flatten();
  held.rows = indices.index_select(0, held.places).sub(part->first);
  held.bag = bag.index_select(0, held.places);
  held.bag_of_all = bag;
  held.counted = counted;
  return held;
}

// Whether an entry is the first one of its whole bag, [held].
at::Tensor leads(const Held& held) {
  const int64_t n = held.counted.numel();
  const auto options = held.places.options();
  const at::Tensor places =
      at::arange(n, options).masked_fill_(held.counted.logical_not(), n);
  return at::full({held.bags}, n, options)
      .scatter_reduce_(0, held.bag_of_all, places, "amin")
      .index_select(0, held.bag)
      .eq(held.places);
}

// What means are divided by, [bags, 1].
at::Tensor divisors(const Held& held, const BagIndices& input) {
  return input.counts.value_or(held.counts).clamp_min(1).unsqueeze(1);
}

// The scale of each entry, [held, 1].
at::Tensor entry_scales(
    const Held& held, const BagIndices& input, at::ScalarType acc) {
  return input.per_sample_weights->index_select(0, held.places)
      .to(acc)
      .unsqueeze(1);
}

at::Tensor composed_counts(const BagIndices& input) {
  return held_entries(input, 0, nullptr).counts;
}

at::Tensor composed_pool(
    const BagLookup& bags, BagMode mode, at::ScalarType result) {
  const auto& [weight, part, input] = bags;
  const Held held = held_entries(input, weight.size(0), &part);
  const auto acc = at::toOpMathType(weight.scalar_type());
  at::Tensor rows = weight.index_select(0, held.rows).to(acc);
  if (input.per_sample_weights.has_value()) {
    rows = rows.mul(entry_scales(held, input, acc));
  }
  at::Tensor sums =
      at::zeros({held.bags, weight.size(1)}, weight.options().dtype(acc))
          .index_add_(0, held.bag, rows);
  if (mode == BagMode::kMean) {
    sums = sums.div(divisors(held, input));
  }
  return sums.to(result);
}

BagMax composed_max(const BagLookup& bags, BagEmpty empty) {
  const auto& [weight, part, input] = bags;
  const Held held = held_entries(input, weight.size(0), &part);
  const std::array<int64_t, 2> sizes = {held.bags, weight.size(1)};
  const double lowest = -std::numeric_limits<double>::infinity();
  at::Tensor rows = weight.index_select(0, held.rows);
  // A NaN counts only as a bag's first entry.
  const at::Tensor passed_over =
      rows.ne(rows).logical_and_(leads(held).logical_not_().unsqueeze(1));
  rows.masked_fill_(passed_over, lowest);
  const at::Tensor bag = held.bag.unsqueeze(1).expand(rows.sizes());
  BagMax out;
  out.values = at::full(sizes, lowest, weight.options())
                   .scatter_reduce(0, bag, rows, "amax");
  // The first of the entries that have the maximum.
  const at::Tensor best = out.values.index_select(0, held.bag);
  const at::Tensor wins =
      rows.eq(best)
          .logical_or_(rows.ne(rows).logical_and_(best.ne(best)))
          .logical_and_(passed_over.logical_not());
  constexpr int64_t kNone = std::numeric_limits<int32_t>::max();
  const at::Tensor places =
      at::where(wins, held.places.unsqueeze(1), kNone).to(at::kLong);
  const at::Tensor argmax = at::full(sizes, kNone, held.places.options())
                                .scatter_reduce(0, bag, places, "amin");
  out.argmax = argmax.masked_fill(argmax.eq(kNone), -1).to(at::kInt);
  if (empty == BagEmpty::kZero) {
    out.values = out.values.masked_fill(out.argmax.lt(0), 0);
  }
  return out;
}

at::Tensor composed_backward(
    const BagGradient& bags, int64_t rows, bool sparse) {
  const auto& [grad, part, input, mode, argmax] = bags;
  const Held held = held_entries(input, rows, &part);
  const auto acc = at::toOpMathType(grad.scalar_type());
  at::Tensor each = grad.index_select(0, held.bag).to(acc);
  if (mode == BagMode::kMean) {
    each = each.div(divisors(held, input).index_select(0, held.bag));
  } else if (mode == BagMode::kMax) {
    const at::Tensor lost =
        argmax->index_select(0, held.bag).ne(held.places.unsqueeze(1));
    each = each.masked_fill(lost, 0);
  } else if (input.per_sample_weights.has_value()) {
    each = each.mul(entry_scales(held, input, acc));
  }
  if (sparse) {
    return at::_sparse_coo_tensor_unsafe(
               held.rows.unsqueeze(0),
               each,
               {rows, grad.size(1)},
               each.options().layout(at::kSparse),
               false)
        .coalesce()
        .to(grad.scalar_type());
  }
  return at::zeros({rows, grad.size(1)}, each.options())
      .index_add_(0, held.rows, each)
      .to(grad.scalar_type());
}

void composed_step(
    const at::Tensor& weight, const BagGradient& bags, double rate) {
  const auto acc = at::toOpMathType(bags.grad.scalar_type());
  BagGradient in_acc = bags;
  in_acc.grad = bags.grad.to(acc);
  if (auto& scales = in_acc.input.per_sample_weights; scales.has_value()) {
    scales = scales->to(acc);
  }
  // Each row once: gradients of equal rows have been added up.
  const at::Tensor gradient =
      composed_backward(in_acc, weight.size(0), /*sparse=*/true);
  const at::Tensor rows = gradient._indices()[0];
  const at::Tensor stepped =
      weight.index_select(0, rows).to(acc).sub(gradient._values(), rate);
  weight.index_copy_(0, rows, stepped.to(weight.scalar_type()));
}

at::Tensor composed_weights_backward(
    const at::Tensor& grad, const BagLookup& bags) {
  const auto& [weight, part, input] = bags;
  const Held held = held_entries(input, weight.size(0), &part);
  const auto acc = at::toOpMathType(grad.scalar_type());
  const at::Tensor dots = grad.index_select(0, held.bag)
                              .to(acc)
                              .mul(weight.index_select(0, held.rows))
                              .sum(1);
  return at::zeros({input.indices.numel()}, dots.options())
      .index_copy_(0, held.places, dots)
      .to(grad.scalar_type());
}

}  // namespace

at::Tensor bag_bounds_composed(const BagIndices& input, int64_t rows) {
  BagIndices on_cpu = input;
  on_cpu.offsets = input.offsets.cpu();
  at::Tensor bounds = bag_bounds(on_cpu);
  if (!input.in_range) {
    const int64_t end = bounds.const_data_ptr<int64_t>()[bounds.numel() - 1];
    const at::Tensor read = input.indices.cpu().contiguous().narrow(0, 0, end);
    if (const auto bad = first_outside(read, rows)) {
      throw_outside_bag_table(*bad, rows);
    }
  }
  return input.indices.is_cpu() ? bounds : bounds.to(input.indices.device());
}

const BagKernels& BagKernels::composed() {
  static constexpr BagKernels kernels{
      composed_counts,
      bag_bounds_composed,
      composed_pool,
      composed_max,
      composed_backward,
      composed_step,
      composed_weights_backward};
  return kernels;
}

}  // namespace tessera::detail
