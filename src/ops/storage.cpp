// What torch asks of a tensor's storage and size that a distributed tensor,
// which has no storage, answers too.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>

#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "tessera/language.h"

namespace tessera::detail {

namespace {

bool is_same_size(const at::Tensor& self, const at::Tensor& other) {
  return self.sizes() == other.sizes();
}

bool is_pinned(const at::Tensor& self, std::optional<at::Device> /*device*/) {
  const auto& shards = distributed_meta(self).unchecked_shards();
  return !shards.empty() &&
         std::all_of(shards.begin(), shards.end(), [](const auto& shard) {
           return shard.is_pinned();
         });
}

// Asked where a tangent is given to a tensor: a copy is made of one that does
// not lie in memory as the tensor does.
bool has_same_storage_numel(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK_TYPE(
      is_dtensor(self) && is_dtensor(other),
      "[make_dual] expected a tensor and its tangent to be distributed both, "
      "but one is plain: ",
      spell("convert it with distribute_tensor(tensor, mesh, placements) or "
            "DTensor::from_local"));
  return self.numel() == other.numel();
}

// Of the size and strides of `other`.
at::Tensor new_zeros_with_same_feature_meta(
    const at::Tensor& self,
    const at::Tensor& other,
    int64_t self_num_batch_dims) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      self_num_batch_dims == 0,
      "[_new_zeros_with_same_feature_meta] batches of distributed tensors are "
      "not supported");
  return at::zeros_like(other, other.options().dtype(self.scalar_type()));
}

}  // namespace

void register_storage(OpRegistry& ops) {
  ops.own_kernel("is_same_size", &is_same_size);
  ops.own_kernel("is_pinned", &is_pinned);
  ops.own_kernel("_has_same_storage_numel", &has_same_storage_numel);
  ops.composed(
      "_new_zeros_with_same_feature_meta", &new_zeros_with_same_feature_meta);
}

}  // namespace tessera::detail
