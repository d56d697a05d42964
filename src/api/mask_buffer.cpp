#include "tessera/mask_buffer.h"

namespace tessera {

namespace {

bool leads(at::IntArrayRef mask, at::IntArrayRef tensor) {
  const size_t more = tensor.size() - mask.size();
  return tensor.size() >= mask.size() && more <= 1 &&
         tensor.slice(0, mask.size()) == mask;
}

}  // namespace

void MaskBuffer::materialize_mask(const at::Tensor& mask) {
  TORCH_CHECK(
      !is_materialized(),
      "MaskBuffer has already been materialized: call release_mask first");
  TORCH_CHECK_TYPE(
      mask.defined() && mask.scalar_type() == at::kBool,
      "[MaskBuffer::materialize_mask] expected a bool tensor, but got ",
      mask.defined() ? c10::toString(mask.scalar_type()) : "none");
  mask_ = mask;
}

void MaskBuffer::release_mask() {
  TORCH_CHECK(
      is_materialized(),
      "MaskBuffer has not been materialized: there is nothing to release");
  mask_ = at::Tensor();
}

void MaskBuffer::apply_mask(at::Tensor& tensor) const {
  TORCH_CHECK(
      is_materialized(),
      "MaskBuffer has not been materialized: call materialize_mask first");
  TORCH_CHECK_VALUE(
      leads(mask_.sizes(), tensor.sizes()),
      "[MaskBuffer::apply_mask] expected a tensor of the mask's shape ",
      mask_.sizes(),
      ", or with one dimension more at the end, but got one of shape ",
      tensor.sizes());
  tensor.masked_fill_(
      tensor.dim() == mask_.dim() ? mask_ : mask_.unsqueeze(-1), 0);
}

}  // namespace tessera
