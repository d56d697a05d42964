#include "ops/few_rows.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_backward.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "dispatch/autograd.h"
#include "dispatch/boundary_node.h"
#include "dispatch/grad_layout.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "ops/by_formula.h"
#include "tessera/shard_math.h"

namespace tessera::detail {
namespace {

// The elements start, start + step, ... of dimension `dim`, `count` in all.
struct Elements {
  int64_t dim;
  int64_t start;
  int64_t count;
  int64_t step;

  // Of these, the ones that lie in `held`: the first one's number, and how
  // many.
  Range within(const Range& held) const {
    const auto passed = [&](int64_t position) {
      const int64_t ahead = position - start;
      return std::clamp<int64_t>((ahead + step - 1) / step, 0, count);
    };
    const int64_t first = held.begin <= start ? 0 : passed(held.begin);
    const int64_t end = held.begin + held.size;
    const int64_t last = end <= start ? 0 : passed(end);
    return {first, std::max<int64_t>(last - first, 0)};
  }

  // Those of `shard`, which holds `held`, as a view; `mine` = within(held).
  at::Tensor of_shard(
      const at::Tensor& shard, const Range& held, const Range& mine) const {
    const int64_t first = start + mine.begin * step - held.begin;
    return shard.slice(dim, first, first + (mine.size - 1) * step + 1, step);
  }
};

// A negative dimension counts from the end. Not checked: asks_for_few is.
int64_t from_front(int64_t dim, const at::Tensor& self) {
  return dim < 0 ? dim + self.dim() : dim;
}

Range held_range(const Spec& spec, int64_t dim, size_t shard) {
  return local_range(
      spec.sizes[dim],
      dim,
      spec.mesh,
      spec.placements,
      spec.mesh.local_positions()[shard]);
}

// The placements, with `instead` where `dim` is sharded.
Placements unsharded(PlacementsRef placements, int64_t dim, Placement instead) {
  Placements result(placements.begin(), placements.end());
  for (auto& placement : result) {
    if (placement.is_shard(dim)) {
      placement = instead;
    }
  }
  return result;
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

// The elements on every rank. Communicates: an all_reduce of them for each mesh
// dimension that shards theirs.
at::Tensor collect(
    const OpInfo& op, const at::Tensor& self, const Elements& elements) {
  const Spec& spec = *distributed_meta(self).spec;
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
  const auto terms = make_distributed(
      Spec::make(
          spec.mesh,
          unsharded(spec.placements, elements.dim, pending),
          sizes,
          spec.dtype),
      std::move(parts));
  return redistribute(
      terms, unsharded(spec.placements, elements.dim, Replicate()), op.name);
}

// The gradient of a tensor of which `elements` were taken: among zeros, each
// rank its part. ATen's formulas know only the sizes of the tensor: they would
// give every rank all of it.
class FewElements final : public torch::autograd::Node {
 public:
  FewElements(SpecPtr spec, Elements elements, bool drops_dim)
      : spec_(std::move(spec)), elements_(elements), drops_dim_(drops_dim) {}

  std::string name() const override { return "TesseraFewElementsBackward"; }

  torch::autograd::variable_list apply(
      torch::autograd::variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    const auto& [dim, start, count, step] = elements_;
    const auto grad = drops_dim_ ? grads[0].unsqueeze(dim) : grads[0];
    const auto placements = grad_placements_of(spec_->placements);
    if (at::GradMode::is_enabled()) {
      return {grad_in_layout(
          at::slice_backward(
              grad, spec_->sizes, dim, start, start + count * step, step),
          spec_->mesh,
          placements)};
    }
    const auto whole = grad_in_layout(
        grad, spec_->mesh, unsharded(placements, dim, Replicate()));
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
  const SpecPtr spec_;
  const Elements elements_;
  const bool drops_dim_;
};

// What select(dim, index) takes. Nothing where the rule serves the call, or
// refuses it.
std::optional<Elements> few_selected(
    const at::Tensor& self, int64_t dim, const c10::SymInt& index) {
  dim = from_front(dim, self);
  if (!asks_for_few(self, dim, 1)) {
    return std::nullopt;
  }
  const int64_t size = self.size(dim);
  const int64_t given = index.guard_int(__FILE__, __LINE__);
  const int64_t start = given < 0 ? given + size : given;
  if (start < 0 || start >= size) {
    return std::nullopt;
  }
  return Elements{dim, start, 1, 1};
}

// The same for slice(dim, start, end, step).
std::optional<Elements> few_sliced(
    const at::Tensor& self,
    int64_t dim,
    const std::optional<c10::SymInt>& start,
    const std::optional<c10::SymInt>& end,
    const c10::SymInt& given_step) {
  dim = from_front(dim, self);
  // A slice of one element asks for the fewest.
  if (!asks_for_few(self, dim, 1)) {
    return std::nullopt;
  }
  const int64_t step = given_step.guard_int(__FILE__, __LINE__);
  if (step <= 0) {
    return std::nullopt;
  }
  const int64_t size = self.size(dim);
  const auto bound = [&](const std::optional<c10::SymInt>& given,
                         int64_t otherwise) {
    const int64_t at =
        given.has_value() ? given->guard_int(__FILE__, __LINE__) : otherwise;
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const int64_t first = bound(start, 0);
  const int64_t length = bound(end, size) - first;
  const int64_t count = length <= 0 ? 0 : (length - 1) / step + 1;
  if (count == 0 || !asks_for_few(self, dim, count)) {
    return std::nullopt;
  }
  return Elements{dim, first, count, step};
}

// A copy that stands for a view of `self`, with the view's strides.
at::Tensor copied_view(
    const OpInfo& op,
    const at::Tensor& self,
    const Elements& elements,
    bool drops_dim) {
  if (is_new_leaf(self)) {
    keep_grad_layouts(self);
  }
  const MadeLike mode(self);
  const LocalOpGuard guard(/*is_view=*/true);
  const auto collected = collect(op, self, elements);
  const Spec& spec = *distributed_meta(collected).spec;
  const int64_t dim = elements.dim;
  Sizes sizes = spec.sizes;
  Sizes strides(self.strides());
  Placements placements = spec.placements;
  if (drops_dim) {
    sizes.erase(sizes.begin() + dim);
    strides.erase(strides.begin() + dim);
    for (auto& placement : placements) {
      if (placement.is_shard() && placement.dim() > dim) {
        placement = Shard(placement.dim() - 1);
      }
    }
  } else {
    strides[dim] *= elements.step;
  }
  const auto view =
      Spec::make(spec.mesh, placements, sizes, strides, spec.dtype);
  Shards shards;
  for (const auto& shard : current_shards(collected)) {
    shards.push_back(
        with_strides_of(*view, drops_dim ? shard.select(dim, 0) : shard));
  }
  return make_distributed(
      view, std::move(shards), view_origin(self, /*copied=*/true));
}

at::Tensor select(const at::Tensor& self, int64_t dim, c10::SymInt index) {
  static const OpInfo& op = aten_op("select", "int");
  if (const auto few = few_selected(self, dim, index)) {
    return copied_view(op, self, *few, /*drops_dim=*/true);
  }
  return run_by_rule(op, self, dim, std::move(index))[0].toTensor();
}

at::Tensor slice(
    const at::Tensor& self,
    int64_t dim,
    std::optional<c10::SymInt> start,
    std::optional<c10::SymInt> end,
    c10::SymInt step) {
  static const OpInfo& op = aten_op("slice", "Tensor");
  if (const auto few = few_sliced(self, dim, start, end, step)) {
    return copied_view(op, self, *few, /*drops_dim=*/false);
  }
  return run_by_rule(
             op,
             self,
             dim,
             std::move(start),
             std::move(end),
             std::move(step))[0]
      .toTensor();
}

// A view as autograd knows it, with a gradient of our own.
template <class Op, class... Args>
at::Tensor recorded_view(
    c10::DispatchKeySet keys,
    const std::optional<Elements>& few,
    bool drops_dim,
    const at::Tensor& self,
    const Args&... args) {
  if (!few.has_value() || self._fw_grad(/*level=*/0).defined()) {
    return by_formula<Op>(keys, self, args...);
  }
  auto view = Op::redispatch(keys & c10::after_autograd_keyset, self, args...);
  record(
      make_node<FewElements>(distributed_meta(self).spec, *few, drops_dim),
      self,
      view);
  return view;
}

at::Tensor recorded_select(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    int64_t dim,
    c10::SymInt index) {
  using Op = at::_ops::select_int;
  if (!records(self)) {
    return Op::redispatch(
        keys & c10::after_autograd_keyset, self, dim, std::move(index));
  }
  return recorded_view<Op>(
      keys,
      few_selected(self, dim, index),
      /*drops_dim=*/true,
      self,
      dim,
      index);
}

at::Tensor recorded_slice(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    int64_t dim,
    std::optional<c10::SymInt> start,
    std::optional<c10::SymInt> end,
    c10::SymInt step) {
  using Op = at::_ops::slice_Tensor;
  if (!records(self)) {
    return Op::redispatch(
        keys & c10::after_autograd_keyset,
        self,
        dim,
        std::move(start),
        std::move(end),
        std::move(step));
  }
  return recorded_view<Op>(
      keys,
      few_sliced(self, dim, start, end, step),
      /*drops_dim=*/false,
      self,
      dim,
      start,
      end,
      step);
}

at::Tensor looked_up(
    const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  if (self.dim() == 2 && dim == 0) {
    return at::embedding(self, index);
  }
  // gather takes an index for each element.
  Sizes ones(self.dim(), 1);
  ones[dim] = index.numel();
  Sizes sizes(self.sizes());
  sizes[dim] = index.numel();
  auto rows =
      at::gather(self, dim, index.reshape(ones).expand(SizesRef(sizes)));
  if (index.dim() == 1) {
    return rows;
  }
  sizes.erase(sizes.begin() + dim);
  sizes.insert(sizes.begin() + dim, index.sizes().begin(), index.sizes().end());
  return rows.reshape(SizesRef(sizes));
}

const OpInfo& index_select_op() {
  static const OpInfo& op = aten_op("index_select");
  return op;
}

// index_select as a lookup, where it asks for few elements.
std::optional<at::Tensor> select_few(
    const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  dim = from_front(dim, self);
  const bool few = index.dim() == 1 && index.layout() == at::kStrided &&
                   asks_for_few(self, dim, index.size(0));
  return few ? std::optional(look_up(index_select_op(), self, dim, index))
             : std::nullopt;
}

at::Tensor index_select(
    const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  if (auto few = select_few(self, dim, index)) {
    return *std::move(few);
  }
  return run_by_rule(index_select_op(), self, dim, index)[0].toTensor();
}

at::Tensor recorded_index_select(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index) {
  if (auto few = select_few(self, dim, index)) {
    return *std::move(few);
  }
  return by_formula<at::_ops::index_select>(keys, self, dim, index);
}

}  // namespace

bool asks_for_few(const at::Tensor& self, int64_t dim, int64_t count) {
  if (!is_dtensor(self) || self.layout() != at::kStrided || dim < 0 ||
      dim >= self.dim() || 2 * count >= self.size(dim)) {
    return false;
  }
  const Spec& spec = *distributed_meta(self).spec;
  bool sharded = false;
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    const Placement& placement = spec.placements[m];
    // What is collected is a pending sum (of bools a maximum), and reductions
    // of different kinds cannot be pending together.
    const bool adds_up =
        spec.dtype != at::kBool &&
        (placement == Partial() || placement == Partial(ReduceOp::Avg));
    if (placement.is_partial() && !adds_up) {
      return false;
    }
    sharded |= placement.is_shard(dim) && spec.mesh.size(m) > 1;
  }
  return sharded;
}

at::Tensor look_up(
    const OpInfo& op,
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index) {
  try {
    return looked_up(self, dim, index);
  } catch (const c10::IndexError& error) {
    const std::string text = error.what_without_backtrace();
    const size_t name_end = text.find("] ");
    TORCH_CHECK_INDEX(
        false,
        "[",
        op.display_name,
        "] an index is out of range for dimension ",
        dim,
        " with size ",
        self.size(dim),
        ": ",
        name_end == std::string::npos ? text : text.substr(name_end + 2));
  }
}

void register_few_rows(OpRegistry& ops) {
  ops.composed("select.int", TORCH_FN(select));
  ops.composed("slice.Tensor", TORCH_FN(slice));
  ops.composed("index_select", TORCH_FN(index_select));
  ops.above_autograd("select.int", TORCH_FN(recorded_select));
  ops.above_autograd("slice.Tensor", TORCH_FN(recorded_slice));
  ops.above_autograd("index_select", TORCH_FN(recorded_index_select));
}

}  // namespace tessera::detail
