#include "embedding/hand_written.h"

#include <ATen/ATen.h>

namespace tessera::bench {

HandWritten::HandWritten(
    RawGroup& group, const at::Tensor& shard, int64_t first)
    : group_(group),
      weight_(shard.detach().requires_grad_()),
      first_(first),
      end_(first + shard.size(0)) {}

at::Tensor HandWritten::rows(const at::Tensor& indices, bool sparse) const {
  const auto foreign = indices.lt(first_).logical_or_(indices.ge(end_));
  const auto own = indices.sub(first_).masked_fill_(foreign, 0);
  return at::embedding(weight_, own, -1, false, sparse)
      .masked_fill_(foreign.unsqueeze(-1), 0);
}

at::Tensor HandWritten::full(const at::Tensor& rows) const {
  auto sum = rows.detach();
  group_.all_reduce(sum);
  return sum;
}

at::Tensor HandWritten::part(const at::Tensor& rows) const {
  auto sizes = rows.sizes().vec();
  sizes[0] /= group_.size();
  auto sum = at::empty(sizes, rows.options().requires_grad(false));
  group_.reduce_scatter(sum, rows.detach());
  return sum;
}

at::Tensor HandWritten::gathered(const at::Tensor& part) const {
  auto sizes = part.sizes().vec();
  sizes[0] *= group_.size();
  auto whole = at::empty(sizes, part.options());
  group_.all_gather(whole, part);
  return whole;
}

at::Tensor HandWritten::gradient(
    const at::Tensor& rows, const at::Tensor& grad) const {
  rows.backward(grad);
  auto result = weight_.grad();
  weight_.mutable_grad() = at::Tensor();
  return result;
}

}  // namespace tessera::bench
