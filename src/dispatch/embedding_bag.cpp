// aten::_embedding_bag on distributed tensors: how table, indices and bags
// meet.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "dispatch/autograd.h"
#include "dispatch/bag_ops.h"
#include "dispatch/decompose.h"
#include "dispatch/embedding.h"
#include "dispatch/plain_args.h"
#include "dispatch/tensor.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

constexpr std::string_view kCause = "aten::_embedding_bag";
using OptionalTensor = std::optional<at::Tensor>;

const OpInfo& bag_op() {
  static const OpInfo& op = aten_op("_embedding_bag");
  return op;
}

Placements replicated_on(const DeviceMesh& mesh) {
  return Placements(mesh.ndim(), Replicate());
}

// A plain tensor as one that every rank has.
at::Tensor replicated(const at::Tensor& tensor, const DeviceMesh& mesh) {
  if (is_dtensor(tensor)) {
    return redistribute(tensor, replicated_on(mesh), kCause);
  }
  auto spec = Spec::make(
      mesh, replicated_on(mesh), tensor.sizes(), tensor.scalar_type());
  return from_shards(std::move(spec), {tensor.contiguous()}, /*shared=*/true);
}

// Plain offsets are taken as equal on every rank: libtorch itself makes them
// for inputs of two dimensions. Other plain tensors are refused as anywhere.
void check_plain(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const OptionalTensor& per_sample_weights) {
  if (is_dtensor(weight) && is_dtensor(indices) &&
      (!per_sample_weights.has_value() || is_dtensor(*per_sample_weights))) {
    return;
  }
  torch::jit::Stack args;
  torch::jit::push(
      args,
      weight,
      indices,
      is_dtensor(offsets) ? offsets : at::Tensor(),
      false,
      0,
      false,
      per_sample_weights,
      false,
      -1);
  admit_plain_tensors(bag_op(), args);
}

// That of the first distributed argument.
const DeviceMesh& mesh_of(std::initializer_list<at::Tensor> tensors) {
  for (const auto& tensor : tensors) {
    if (is_dtensor(tensor)) {
      return distributed_meta(tensor).spec->mesh;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "no distributed argument");
}

// The one mesh dimension that cuts the indices; -1 for none or several.
int64_t cut_dim(const Spec& batch) {
  int64_t found = -1;
  for (int64_t m = 0; m < batch.mesh.ndim(); ++m) {
    if (!batch.placements[m].is_replicate() && batch.mesh.size(m) > 1) {
      if (found >= 0 || !batch.placements[m].is_shard()) {
        return -1;
      }
      found = m;
    }
  }
  return found;
}

// Whether the chunks of indices begin where the chunks of bags do. Every rank
// has all offsets, and finds the same.
bool cut_between_bags(
    const Spec& batch, const at::Tensor& offsets, int64_t bags, int64_t m) {
  const auto& shards = distributed_meta(offsets).shards;
  if (shards.empty() || shards[0].is_meta()) {
    return false;
  }
  const auto starts = shards[0].to(c10::kCPU, at::kLong).contiguous();
  const auto* start = starts.const_data_ptr<int64_t>();
  const int64_t n = batch.sizes[0];
  const int64_t ranks = batch.mesh.size(m);
  for (int64_t c = 0; c < ranks; ++c) {
    const int64_t bag = chunk(bags, ranks, c).begin;
    if (chunk(n, ranks, c).begin != (bag < bags ? start[bag] : n)) {
      return false;
    }
  }
  return true;
}

struct Call {
  at::Tensor weight;
  at::Tensor indices;
  at::Tensor offsets;
  OptionalTensor per_sample_weights;
  BagArgs args;

  int64_t bags() const {
    return offsets.size(0) - (args.include_last_offset ? 1 : 0);
  }
};

// Every rank gets all indices, as if the batch had not been dealt out.
void gather_batch(Call& call) {
  const auto& mesh = distributed_meta(call.indices).spec->mesh;
  const auto whole = replicated_on(mesh);
  call.indices = redistribute(call.indices, whole, kCause);
  if (call.per_sample_weights.has_value()) {
    call.per_sample_weights =
        redistribute(*call.per_sample_weights, whole, kCause);
  }
  call.args.whole_bags = false;
}

at::Tensor pool(Call call) {
  const Spec& table = *distributed_meta(call.weight).spec;
  const SpecPtr batch = distributed_meta(call.indices).spec;
  const int64_t m = cut_dim(*batch);
  call.args.whole_bags =
      m >= 0 && cut_between_bags(*batch, call.offsets, call.bags(), m);
  if (call.args.whole_bags && table.placements[m].is_replicate()) {
    if (call.per_sample_weights.has_value()) {
      call.per_sample_weights =
          redistribute(*call.per_sample_weights, batch->placements, kCause);
    }
    return bag(call.weight,
               call.indices,
               call.offsets,
               call.per_sample_weights,
               call.args)
        .pooled;
  }
  const bool deal_out = call.args.whole_bags;
  gather_batch(call);
  const auto bags =
      bag(call.weight,
          call.indices,
          call.offsets,
          call.per_sample_weights,
          call.args);
  Placements dealt = distributed_meta(bags.pooled).spec->placements;
  if (deal_out && !dealt[m].is_shard()) {
    dealt[m] = Shard(0);
  }
  return redistribute(bags.pooled, dealt, kCause);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> embedding_bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool scale_grad_by_freq,
    int64_t mode,
    bool sparse,
    const OptionalTensor& per_sample_weights,
    bool include_last_offset,
    int64_t padding_idx) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !scale_grad_by_freq,
      "[embedding_bag] scale_grad_by_freq is not supported for distributed "
      "tables");
  TORCH_CHECK_VALUE(
      mode >= 0 && mode <= 2,
      "[embedding_bag] expected mode 0 (sum), 1 (mean) or 2 (max), but got ",
      mode);
  TORCH_CHECK_VALUE(
      indices.dim() == 1 && offsets.dim() == 1,
      "[embedding_bag] expected indices and offsets of one dimension, but got ",
      indices.sizes(),
      " and ",
      offsets.sizes());
  const bool weighted =
      per_sample_weights.has_value() && per_sample_weights->defined();
  check_plain(
      weight, indices, offsets, weighted ? per_sample_weights : std::nullopt);
  const DeviceMesh& mesh = mesh_of(
      {weight,
       indices,
       offsets,
       weighted ? *per_sample_weights : at::Tensor()});
  Call call{
      is_dtensor(weight) ? weight : replicated(weight, mesh),
      is_dtensor(indices) ? indices : replicated(indices, mesh),
      replicated(offsets, mesh),
      weighted ? OptionalTensor(
                     is_dtensor(*per_sample_weights)
                         ? *per_sample_weights
                         : replicated(*per_sample_weights, mesh))
               : std::nullopt,
      {static_cast<BagMode>(mode),
       include_last_offset,
       padding_idx,
       false,
       sparse}};
  auto pooled = pool(std::move(call));
  // The other results serve ATen's own backward, which is not used here.
  const auto none =
      replicated(at::empty({0}, at::TensorOptions(at::kLong)), mesh);
  return {std::move(pooled), none, none, none};
}

}  // namespace

void register_embedding_bag(torch::Library& aten) {
  aten.impl("_embedding_bag", &embedding_bag);
  aten.impl("_embedding_bag_forward_only", &embedding_bag);
}

}  // namespace tessera::detail
