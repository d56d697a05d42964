// Distributed tensors whose shards are sparse (COO): the gradients of lookups
// with sparse=True.
//
// They have the dispatch key of sparse tensors, so that is_sparse() is true.
// Shards of rows store as many entries as their rows were touched, so the
// indices and values of the whole are no distributed tensor over the same mesh.
// They lie on the ranks that share the rows: the mesh without the dimensions
// that shard rows, or this process alone where none is left. A process sees the
// entries that live in it; in a simulated world those are all, in the order of
// one device. Nothing here communicates.
#include "ops/all_ops.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <utility>

#include "dispatch/tensor.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using Positions = c10::SmallVector<int64_t, 8>;

// Where the entries of tensors of one layout lie.
struct EntryLayout {
  DeviceMesh mesh;
  Placements placements;
  // For each shard of the entries that lives here, the positions of the
  // tensor's mesh whose rows it holds, in the order of their rows.
  std::vector<Positions> sources;
};

bool shards_rows(const Placement& placement) { return placement.is_shard(0); }

Range rows_of(const Spec& spec, int64_t position) {
  return local_range(spec.sizes[0], 0, spec.mesh, spec.placements, position);
}

// Whether two positions have the same coordinates on the mesh dimensions that
// shard rows (`rows`), or on the others.
bool agree_on(const Spec& spec, int64_t a, int64_t b, bool rows) {
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    if (shards_rows(spec.placements[m]) == rows &&
        spec.mesh.coordinate(a, m) != spec.mesh.coordinate(b, m)) {
      return false;
    }
  }
  return true;
}

EntryLayout whole_rows(const Spec& spec) {
  EntryLayout layout{spec.mesh, spec.placements, {}};
  for (const int64_t position : spec.mesh.local_positions()) {
    layout.sources.push_back({position});
  }
  return layout;
}

bool has_whole_rows(const Spec& spec) {
  return std::none_of(
      spec.placements.begin(), spec.placements.end(), shards_rows);
}

bool is_slice(const DeviceMesh& mesh) {
  return static_cast<int64_t>(mesh.all_ranks().size()) != mesh.size();
}

EntryLayout entry_layout(const Spec& spec) {
  if (has_whole_rows(spec)) {
    return whole_rows(spec);
  }
  const DeviceMesh& mesh = spec.mesh;
  const auto all = mesh.all_ranks();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_slice(mesh),
      "the entries of a sparse tensor over ",
      mesh.str(),
      ", a slice of a mesh, are not supported: use a mesh of its own");
  const auto local = mesh.local_positions();
  const int64_t here = local.empty() ? 0 : local[0];
  std::vector<int64_t> ranks;
  std::vector<int64_t> shape;
  Placements placements;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (!shards_rows(spec.placements[m])) {
      shape.push_back(mesh.size(m));
      placements.push_back(spec.placements[m]);
    }
  }
  if (shape.empty()) {
    shape.push_back(1);
    placements.push_back(Replicate());
  }
  std::vector<Positions> sources;
  for (int64_t p = 0; p < static_cast<int64_t>(all.size()); ++p) {
    if (!agree_on(spec, p, here, /*rows=*/true)) {
      continue;
    }
    ranks.push_back(all[p]);
    Positions same;
    for (const int64_t q : local) {
      if (agree_on(spec, p, q, /*rows=*/false)) {
        same.push_back(q);
      }
    }
    std::sort(same.begin(), same.end(), [&](int64_t a, int64_t b) {
      return rows_of(spec, a).begin < rows_of(spec, b).begin;
    });
    if (!same.empty()) {
      sources.push_back(std::move(same));
    }
  }
  return {
      DeviceMesh(mesh.device_type(), ranks, shape),
      std::move(placements),
      std::move(sources)};
}

const at::Tensor& shard_at(const at::Tensor& tensor, int64_t position) {
  const auto local = distributed_meta(tensor).spec->mesh.local_positions();
  return current_shards(
      tensor)[std::find(local.begin(), local.end(), position) - local.begin()];
}

at::Tensor make_sparse(
    const at::Tensor& indices,
    const at::Tensor& values,
    SizesRef sizes,
    bool is_coalesced) {
  return at::_sparse_coo_tensor_unsafe(
      indices,
      values,
      sizes,
      values.options().layout(at::kSparse),
      is_coalesced);
}

at::Tensor shifted_rows(const at::Tensor& indices, int64_t offset) {
  if (offset == 0) {
    return indices;
  }
  auto shifted = indices.clone();
  shifted.select(0, 0).add_(offset);
  return shifted;
}

void check_rows_alone(const at::Tensor& shard, const Spec& spec) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      shard.sparse_dim() == 1,
      "the entries of ",
      spec.str(),
      ", a sparse tensor with ",
      shard.sparse_dim(),
      " sparse dimensions and sharded rows, are not supported: expected one");
}

// Whether a tensor lies as the entries of such tensors do.
bool is_layout_of(const EntryLayout& layout, const Spec& spec) {
  return spec.mesh == layout.mesh && spec.placements == layout.placements;
}

// The entries that live here, with the rows' numbers in the whole: a sparse
// tensor over the ranks that share them. `self` itself where rows are whole.
at::Tensor entries_of(const at::Tensor& self) {
  check_current(self);
  const Spec& spec = *distributed_meta(self).spec;
  const auto layout = entry_layout(spec);
  if (is_layout_of(layout, spec)) {
    return self;
  }
  Shards shards;
  bool copied = false;
  for (const auto& sources : layout.sources) {
    std::vector<at::Tensor> indices;
    std::vector<at::Tensor> values;
    bool is_coalesced = true;
    for (const int64_t position : sources) {
      const auto& shard = shard_at(self, position);
      check_rows_alone(shard, spec);
      indices.push_back(
          shifted_rows(shard._indices(), rows_of(spec, position).begin));
      values.push_back(shard._values());
      is_coalesced &= shard.is_coalesced();
    }
    const bool only = sources.size() == 1;
    copied |= !only;
    Sizes sizes(shard_at(self, sources[0]).sizes());
    sizes[0] = spec.sizes[0];
    shards.push_back(make_sparse(
        only ? indices[0] : at::cat(indices, 1),
        only ? values[0] : at::cat(values),
        sizes,
        is_coalesced));
  }
  return make_distributed(
      Spec::make(layout.mesh, layout.placements, spec.sizes, spec.dtype),
      std::move(shards),
      copied ? view_origin(self, /*copied=*/true) : ViewOrigin());
}

// Autograd looks at the entries of the gradient that it gives to a parameter.
// It then makes another tensor of them, which would lie as entries do, unless
// somebody else holds the gradient: in that case it clones it. So the gradient
// is held from the look to the clone.
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
  const Spec& spec = *distributed_meta(self).spec;
  return torch::autograd::get_current_node() != nullptr &&
         !has_whole_rows(spec) && is_slice(spec.mesh);
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

// ---- what a sparse tensor is asked ----

at::Tensor indices(const at::Tensor& self) {
  if (only_autograd_looks(self)) {
    return without_data(self, at::kLong);
  }
  const auto entries = entries_of(self);
  const auto& meta = distributed_meta(entries);
  Shards shards;
  for (const auto& shard : current_shards(entries)) {
    shards.push_back(shard._indices());
  }
  const Sizes sizes = shards.empty() ? Sizes{1, 0} : Sizes(shards[0].sizes());
  const Placements replicated(meta.spec->mesh.ndim(), Replicate());
  auto result = make_distributed(
      Spec::make(meta.spec->mesh, replicated, sizes, at::kLong),
      std::move(shards),
      view_origin(self, meta.is_copied_view()));
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
  Shards shards;
  for (const auto& shard : current_shards(entries)) {
    shards.push_back(shard._values());
  }
  // The sparse dimensions are one: that of the entries.
  const int64_t sparse_dims = current_shards(entries).empty()
                                  ? 1
                                  : current_shards(entries)[0].sparse_dim();
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
      view_origin(self, meta.is_copied_view()));
}

bool is_coalesced(const at::Tensor& self) {
  const auto& shards = current_shards(self);
  return std::all_of(shards.begin(), shards.end(), [](const auto& shard) {
    return shard.is_coalesced();
  });
}

int64_t nnz(const at::Tensor& self) {
  const auto entries = entries_of(self);
  const auto& shards = current_shards(entries);
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
  check_current(self);
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
  check_current(self);
  const auto& meta = distributed_meta(self);
  Shards shards;
  for (const auto& shard : current_shards(self)) {
    shards.push_back(shard.to_dense(dtype));
  }
  return make_distributed(
      meta.spec->with(dtype.value_or(meta.spec->dtype)), std::move(shards));
}

// ---- making one of its entries, and bringing it home ----

at::Tensor from_entries(
    int64_t sparse_dims,
    int64_t dense_dims,
    at::IntArrayRef size,
    const at::Tensor& indices,
    const at::Tensor& values,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    std::optional<bool> is_coalesced) {
  constexpr const char* kCaller = "[sparse_coo_tensor] ";
  TORCH_CHECK(
      is_dtensor(indices) && is_dtensor(values),
      kCaller,
      "expected indices and values that are both distributed or both plain, "
      "got ",
      is_dtensor(indices) ? "plain values" : "plain indices");
  const Spec& of_values = *distributed_meta(values).spec;
  const Spec& of_indices = *distributed_meta(indices).spec;
  TORCH_CHECK_VALUE(
      of_indices.mesh == of_values.mesh,
      kCaller,
      "indices and values live on different meshes, ",
      of_indices.mesh.str(),
      " and ",
      of_values.mesh.str());
  Placements placements;
  for (size_t m = 0; m < of_values.placements.size(); ++m) {
    const auto& placement = of_values.placements[m];
    TORCH_CHECK_NOT_IMPLEMENTED(
        of_indices.placements[m].is_replicate() &&
            (placement.is_replicate() ||
             (placement.is_shard() && placement.dim() > 0)),
        kCaller,
        "expected every rank to hold all entries, got indices on ",
        to_string(of_indices.placements),
        " and values on ",
        to_string(of_values.placements),
        ": redistribute them");
    placements.push_back(
        placement.is_shard() ? Shard(placement.dim() + sparse_dims - 1)
                             : placement);
  }
  auto spec = Spec::make(
      of_values.mesh, placements, size, dtype.value_or(of_values.dtype));
  const auto positions = of_values.mesh.local_positions();
  Shards shards;
  for (size_t i = 0; i < positions.size(); ++i) {
    shards.push_back(at::_sparse_coo_tensor_with_dims_and_tensors(
        sparse_dims,
        dense_dims,
        local_shape(size, of_values.mesh, placements, positions[i]),
        current_shards(indices)[i],
        current_shards(values)[i],
        at::TensorOptions()
            .dtype(dtype)
            .layout(layout)
            .device(device)
            .pinned_memory(pin_memory),
        is_coalesced));
  }
  return make_distributed(std::move(spec), std::move(shards));
}

// Which of the rows `rows` lie in `range`.
at::Tensor entries_in(const at::Tensor& rows, const Range& range) {
  return rows.ge(range.begin)
      .logical_and_(rows.lt(range.begin + range.size))
      .nonzero()
      .squeeze(1);
}

// Sparse entries as a sparse tensor laid out like `like`, to which they belong.
at::Tensor bring_home(
    const at::Tensor& entries, const Spec& like, const EntryLayout& layout) {
  Shards shards(like.mesh.local_positions().size());
  const auto local = like.mesh.local_positions();
  for (size_t q = 0; q < layout.sources.size(); ++q) {
    const auto& shard = current_shards(entries)[q];
    check_rows_alone(shard, like);
    const auto indices = shard._indices();
    int64_t taken = 0;
    for (const int64_t position : layout.sources[q]) {
      const auto range = rows_of(like, position);
      const auto chosen = entries_in(indices.select(0, 0), range);
      const bool all = chosen.numel() == indices.size(1);
      Sizes sizes(shard.sizes());
      sizes[0] = range.size;
      const auto slot =
          std::find(local.begin(), local.end(), position) - local.begin();
      shards[slot] = make_sparse(
          shifted_rows(
              all ? indices : indices.index_select(1, chosen), -range.begin),
          all ? shard._values() : shard._values().index_select(0, chosen),
          sizes,
          shard.is_coalesced());
      taken += chosen.numel();
    }
    TORCH_CHECK_INDEX(
        taken == indices.size(1),
        "some of the entries of a sparse tensor are in rows that this process "
        "does not hold of ",
        like.str());
  }
  return make_distributed(
      Spec::make(
          like.mesh,
          like.placements,
          distributed_meta(entries).spec->sizes,
          distributed_meta(entries).spec->dtype),
      std::move(shards));
}

// dense + sparse and the like, where the sparse one holds entries.
void add_entries(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const auto& self = (*stack)[first].toTensor();
  const auto& other = (*stack)[first + 1].toTensor();
  if (is_dtensor(self) && is_dtensor(other) && other.is_sparse()) {
    const Spec& spec = *distributed_meta(self).spec;
    const auto layout = entry_layout(spec);
    if (!is_layout_of(layout, spec) &&
        is_layout_of(layout, *distributed_meta(other).spec) &&
        self.sizes() == other.sizes()) {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      (*stack)[first + 1] = bring_home(other, spec, layout);
    }
  }
  run_as_dense(op, stack);
}

// The values of `self`, which is dense, where `mask` has entries.
at::Tensor sparse_mask(const at::Tensor& self, const at::Tensor& mask) {
  constexpr const char* kCaller = "[sparse_mask] ";
  TORCH_CHECK(
      is_dtensor(self) && is_dtensor(mask),
      kCaller,
      "expected a tensor and a mask that are both distributed, got a plain ",
      is_dtensor(self) ? "mask" : "tensor");
  TORCH_CHECK_VALUE(
      self.sizes() == mask.sizes() && !self.is_sparse() && mask.is_sparse(),
      kCaller,
      "expected a dense tensor and a sparse mask of the same shape, got "
      "shapes ",
      self.sizes(),
      " and ",
      mask.sizes());
  check_current(self);
  const Spec& spec = *distributed_meta(self).spec;
  const auto layout = entry_layout(spec);
  const Spec& of_mask = *distributed_meta(mask).spec;
  const bool home =
      of_mask.mesh == spec.mesh && of_mask.placements == spec.placements;
  TORCH_CHECK_VALUE(
      home || is_layout_of(layout, of_mask),
      kCaller,
      "expected a mask that is laid out like the tensor, ",
      spec.str(),
      ", got ",
      of_mask.str());
  const auto entries = home ? entries_of(mask) : mask;
  Shards shards;
  for (size_t q = 0; q < layout.sources.size(); ++q) {
    const auto& shard = current_shards(entries)[q];
    check_rows_alone(shard, spec);
    const auto rows = shard._indices().select(0, 0);
    auto values = at::empty(
        shard._values().sizes(),
        shard_at(self, layout.sources[q][0]).options());
    for (const int64_t position : layout.sources[q]) {
      const auto range = rows_of(spec, position);
      const auto chosen = entries_in(rows, range);
      values.index_copy_(
          0,
          chosen,
          shard_at(self, position)
              .index_select(0, rows.index_select(0, chosen).sub(range.begin)));
    }
    shards.push_back(make_sparse(
        shard._indices(), values, shard.sizes(), shard.is_coalesced()));
  }
  return make_distributed(
      Spec::make(layout.mesh, layout.placements, spec.sizes, spec.dtype),
      std::move(shards));
}

}  // namespace

void register_sparse(OpRegistry& ops) {
  ops.sparse("_indices", &indices);
  ops.sparse("indices", &indices);
  ops.sparse("_values", &values);
  ops.sparse("values", &values);
  ops.sparse("is_coalesced", &is_coalesced);
  ops.sparse("_nnz", &nnz);
  ops.sparse("sparse_dim", &sparse_dim);
  ops.sparse("_dimI", &sparse_dim);
  ops.sparse("dense_dim", &dense_dim);
  ops.sparse("_dimV", &dense_dim);
  ops.sparse("_coalesce", &coalesce);
  ops.sparse("_to_dense", &to_dense);
  ops.sparse("_sparse_coo_tensor_with_dims_and_tensors", &from_entries);
  ops.sparse("sparse_mask", &sparse_mask);
  ops.sparse(
      "clone", torch::CppFunction::makeFromBoxedFunction<&clone_gradient>());
  for (const char* name :
       {"add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor"}) {
    ops.sparse(name, torch::CppFunction::makeFromBoxedFunction<&add_entries>());
  }
}

}  // namespace tessera::detail
