#include "ops/few_elements.h"

#include <ATen/ops/full.h>
#include <ATen/ops/slice_backward.h>
#include <ATen/ops/zeros.h>

#include "dispatch/autograd.h"
#include "dispatch/grad_layout.h"
#include "dispatch/tensor.h"
#include "ops/few_rows.h"
#include "plan/redistribute_plan.h"

namespace tessera::detail {

namespace {

Range held_range(const Spec& spec, int64_t dim, size_t shard) {
  return local_range(
      spec.sizes[dim],
      dim,
      spec.mesh,
      spec.placements,
      spec.mesh.local_positions()[shard]);
}

// What a rank has of the elements, among zeros where other ranks have them.
// Negative zeros: x + -0.0 is x for every x, 0.0 and -0.0 included.
at::Tensor held_among_zeros(
    const at::Tensor& shard, const Range& held, const Elements& elements) {
  auto sizes = shard.sizes().vec();
  sizes[elements.dim] = elements.count;
  auto part = at::full(sizes, -0.0, shard.options());
  const Range mine = elements.within(held);
  if (mine.size > 0) {
    part.narrow(elements.dim, mine.begin, mine.size)
        .copy_(elements.of_shard(shard, held, mine));
  }
  return part;
}

// What the gradient of a tensor of layout `spec` costs by the rule of
// slice_backward, which keeps `dim` whole: another dimension is sharded on the
// way, if there is one.
double cost_by_rule(
    const Spec& grad, const Spec& spec, int64_t dim, PlacementsRef placements) {
  const Placement between =
      grad.dim() == 1 ? Placement(Replicate()) : Placement(Shard(dim == 0));
  const auto through = unsharded(grad.placements, dim, between);
  return redistribution_cost(grad, through) +
         redistribution_cost(
             *Spec::make(spec.mesh, through, spec.sizes, grad.dtype),
             placements);
}

// The gradient of a tensor of which `elements` were taken: among zeros, each
// rank its part. ATen's formulas know only the sizes of the tensor: they would
// give every rank all of it.
class TakenElements final : public torch::autograd::Node {
 public:
  TakenElements(SpecPtr spec, Elements elements, bool drops_dim)
      : spec_(std::move(spec)), elements_(elements), drops_dim_(drops_dim) {}

  std::string name() const override { return "TesseraTakenElementsBackward"; }

  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    const auto& [dim, start, count, step] = elements_;
    const auto grad = drops_dim_ ? grads[0].unsqueeze(dim) : grads[0];
    const auto placements = grad_placements_of(spec_->placements);
    const auto gathered = unsharded(placements, dim, Replicate());
    if (at::GradMode::is_enabled() || !is_cheaper(grad, gathered)) {
      return {grad_in_layout(
          at::slice_backward(
              grad, spec_->sizes, dim, start, start + count * step, step),
          spec_->mesh,
          placements)};
    }
    const auto whole = grad_in_layout(grad, spec_->mesh, gathered);
    const auto& parts = current_shards(whole);
    Shards shards;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Range held = held_range(*spec_, dim, i);
      auto sizes = parts[i].sizes().vec();
      sizes[dim] = held.size;
      auto shard = at::zeros(sizes, parts[i].options());
      const Range mine = elements_.within(held);
      if (mine.size > 0) {
        elements_.of_shard(shard, held, mine)
            .copy_(parts[i].narrow(dim, mine.begin, mine.size));
      }
      shards.push_back(std::move(shard));
    }
    return {make_distributed(
        Spec::make(spec_->mesh, placements, spec_->sizes, whole.scalar_type()),
        std::move(shards))};
  }

 private:
  // Whether the elements' gradient is had on every rank for less than by the
  // rule.
  bool is_cheaper(const at::Tensor& grad, PlacementsRef gathered) const {
    if (!is_dtensor(grad)) {
      return true;
    }
    const Spec& given = *distributed_meta(grad).spec;
    return redistribution_cost(given, gathered) <=
           cost_by_rule(
               given,
               *spec_,
               elements_.dim,
               grad_placements_of(spec_->placements));
  }

  const SpecPtr spec_;
  const Elements elements_;
  const bool drops_dim_;
};

}  // namespace

Placements unsharded(
    PlacementsRef placements, int64_t dim, const Placement& instead) {
  Placements result(placements.begin(), placements.end());
  for (auto& placement : result) {
    if (placement.is_shard(dim)) {
      placement = instead;
    }
  }
  return result;
}

at::Tensor collect(
    const OpInfo& op, const at::Tensor& self, const Elements& elements) {
  const Spec& spec = *distributed_meta(self).spec;
  if (const auto bits = collected_as(spec.dtype); bits != spec.dtype) {
    return collect(op, self.view(bits), elements).view(spec.dtype);
  }
  const auto& shards = current_shards(self);
  Shards parts;
  for (size_t i = 0; i < shards.size(); ++i) {
    parts.push_back(held_among_zeros(
        shards[i], held_range(spec, elements.dim, i), elements));
  }
  Sizes sizes = spec.sizes;
  sizes[elements.dim] = elements.count;
  const auto pending =
      Partial(spec.dtype == at::kBool ? ReduceOp::Max : ReduceOp::Sum);
  const auto among_zeros = make_distributed(
      Spec::make(
          spec.mesh,
          unsharded(spec.placements, elements.dim, pending),
          sizes,
          row_major_strides(sizes),
          spec.dtype,
          spec.shard_dtype),
      std::move(parts));
  return redistribute(
      among_zeros,
      unsharded(spec.placements, elements.dim, Replicate()),
      op.name);
}

NodePtr elements_backward(
    SpecPtr spec, const Elements& elements, bool drops_dim) {
  return make_node<TakenElements>(std::move(spec), elements, drops_dim);
}

}  // namespace tessera::detail
