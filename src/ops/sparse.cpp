// What a distributed tensor whose shards are sparse (COO) is asked: the
// gradients of lookups with sparse=True. They have the dispatch key of sparse
// tensors, so that is_sparse() is true.
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <utility>

#include "dispatch/copied_view.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "ops/sparse_entries.h"

namespace tessera::detail {

namespace {

// Autograd looks at the entries of the gradient that it gives to a parameter.
// It then makes another tensor of them, which would be placed as entries are,
// unless somebody else holds the gradient: in that case it clones it. So the
// gradient is held from the look to the clone.
at::Tensor& held_gradient() {
  static thread_local at::Tensor held;
  return held;
}

void clone_gradient(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::Tensor held = std::exchange(held_gradient(), {});
  const auto count = op.schema().arguments().size();
  const auto& self = torch::jit::peek(*stack, 0, count).toTensor();
  // Autograd's reference, the stack's and ours: nobody else can see that the
  // clone shares the memory of the gradient, which a plain one does too.
  constexpr size_t kOnlyAutograd = 3;
  if (held.defined() && held.is_same(self) &&
      self.use_count() == kOnlyAutograd) {
    at::Tensor alias = make_alias(self);
    torch::jit::drop(*stack, count);
    torch::jit::push(*stack, std::move(alias));
    return;
  }
  run_as_dense(op, stack);
}

// What autograd sees of entries that have no layout: it asks only whether they
// are contiguous. A hook that reads them finds no data.
bool only_autograd_looks(const at::Tensor& self) {
  return torch::autograd::get_current_node() != nullptr &&
         !has_entry_layout(*distributed_meta(self).spec);
}

at::Tensor without_data(const at::Tensor& self, at::ScalarType dtype) {
  held_gradient() = self;
  const Spec& spec = *distributed_meta(self).spec;
  const auto options = at::TensorOptions().dtype(dtype).device(at::kMeta);
  Shards shards;
  for (size_t i = 0; i < spec.mesh.local_positions().size(); ++i) {
    shards.push_back(at::empty({1, 0}, options));
  }
  const Placements replicated(spec.mesh.ndim(), Replicate());
  return make_distributed(
      Spec::make(spec.mesh, replicated, Sizes{1, 0}, dtype), std::move(shards));
}

at::Tensor indices(const at::Tensor& self) {
  if (only_autograd_looks(self)) {
    return without_data(self, at::kLong);
  }
  const auto entries = entries_of(self);
  const auto& meta = distributed_meta(entries);
  Shards shards;
  for (const auto& shard : meta.unchecked_shards()) {
    shards.push_back(shard._indices());
  }
  const Sizes sizes = shards.empty() ? Sizes{1, 0} : Sizes(shards[0].sizes());
  const Placements replicated(meta.spec->mesh.ndim(), Replicate());
  auto result = make_distributed(
      Spec::make(meta.spec->mesh, replicated, sizes, at::kLong),
      std::move(shards),
      meta.is_copied_view() ? frozen_origin(self) : view_origin(self));
  if (!is_layout_of(
          {meta.spec->mesh, meta.spec->placements, {}},
          *distributed_meta(self).spec)) {
    held_gradient() = self;
  }
  return result;
}

at::Tensor values(const at::Tensor& self) {
  if (only_autograd_looks(self)) {
    return without_data(self, self.scalar_type());
  }
  const auto entries = entries_of(self);
  const auto& meta = distributed_meta(entries);
  const Spec& spec = *meta.spec;
  const auto& stored = meta.unchecked_shards();
  Shards shards;
  for (const auto& shard : stored) {
    shards.push_back(shard._values());
  }
  // The sparse dimensions are one: that of the entries.
  const int64_t sparse_dims = stored.empty() ? 1 : stored[0].sparse_dim();
  Sizes sizes{shards.empty() ? 0 : shards[0].size(0)};
  sizes.append(spec.sizes.begin() + sparse_dims, spec.sizes.end());
  Placements placements;
  for (const auto& placement : spec.placements) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        placement.is_replicate() ||
            (placement.is_shard() && placement.dim() >= sparse_dims),
        "the values of ",
        spec.str(),
        ", a sparse tensor, are not supported: reduce it first");
    placements.push_back(
        placement.is_shard() ? Shard(placement.dim() - sparse_dims + 1)
                             : placement);
  }
  return make_distributed(
      Spec::make(spec.mesh, placements, sizes, spec.dtype),
      std::move(shards),
      meta.is_copied_view() ? frozen_origin(self) : view_origin(self));
}

bool is_coalesced(const at::Tensor& self) {
  const auto& shards = current_shards(self);
  return std::all_of(shards.begin(), shards.end(), [](const auto& shard) {
    return shard.is_coalesced();
  });
}

int64_t nnz(const at::Tensor& self) {
  const auto entries = entries_of(self);
  const auto& shards = distributed_meta(entries).unchecked_shards();
  return shards.empty() ? 0 : shards[0]._nnz();
}

int64_t sparse_dim(const at::Tensor& self) {
  const auto& shards = current_shards(self);
  return shards.empty() ? 1 : shards[0].sparse_dim();
}

int64_t dense_dim(const at::Tensor& self) {
  return self.dim() - sparse_dim(self);
}

at::Tensor coalesce(const at::Tensor& self) {
  const auto& meta = distributed_meta(self);
  Shards shards;
  for (const auto& shard : current_shards(self)) {
    shards.push_back(shard.coalesce());
  }
  return make_distributed(meta.spec, std::move(shards));
}

at::Tensor to_dense(
    const at::Tensor& self,
    std::optional<at::ScalarType> dtype,
    std::optional<bool> /*masked_grad*/) {
  const auto& meta = distributed_meta(self);
  Shards shards;
  for (const auto& shard : current_shards(self)) {
    shards.push_back(shard.to_dense(dtype));
  }
  return make_distributed(
      meta.spec->with(dtype.value_or(meta.spec->dtype)), std::move(shards));
}

}  // namespace

void register_sparse(OpRegistry& ops) {
  ops.sparse("_indices", "indices", &indices);
  ops.sparse("_values", "values", &values);
  ops.sparse("is_coalesced", &is_coalesced);
  ops.sparse("_nnz", &nnz);
  ops.sparse("sparse_dim", "_dimI", &sparse_dim);
  ops.sparse("dense_dim", "_dimV", &dense_dim);
  ops.sparse("_coalesce", &coalesce);
  ops.sparse("_to_dense", &to_dense);
  ops.sparse(
      "clone", torch::CppFunction::makeFromBoxedFunction<&clone_gradient>());
}

}  // namespace tessera::detail
