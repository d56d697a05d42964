#include <ATen/OpMathType.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/embedding_renorm.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <tuple>

#include "kernels/lookup/embedding_index.h"
#include "kernels/lookup/lookup_kernels.h"

namespace tessera::detail {

void check_indices_composed(const at::Tensor& indices, int64_t table_rows) {
  if (indices.is_meta()) {
    return;
  }
  const at::Tensor flat = indices.reshape({-1});
  const at::Tensor bad = flat.lt(0).bitwise_or_(flat.ge(table_rows)).nonzero();
  if (bad.size(0) > 0) {
    throw_outside_table(
        flat.select(0, bad.select(0, 0).item<int64_t>()).item<int64_t>(),
        table_rows);
  }
}

namespace {

// The terms of the gradient that are held here: rows of the part, and the rows
// of `grad` that belong to them, in the type that sums are made in.
struct Terms {
  at::Tensor rows;
  at::Tensor grads;
};

Terms held_terms(
    const at::Tensor& grad, const HeldRows& part, int64_t padding_idx) {
  check_indices_composed(part.indices, part.table_rows);
  const at::Tensor flat = part.indices.reshape({-1}).to(at::kLong);
  const at::Tensor local = flat.sub(part.first_row);
  const at::Tensor held = local.ge(0)
                              .bitwise_and_(local.lt(part.rows))
                              .bitwise_and_(flat.ne(padding_idx));
  const at::Tensor places = held.nonzero().squeeze(1);
  return {
      local.index_select(0, places),
      grad.reshape({flat.numel(), grad.size(-1)})
          .index_select(0, places)
          .to(at::toOpMathType(grad.scalar_type()))};
}

at::Tensor composed_lookup(const at::Tensor& weight, const HeldRows& held) {
  const at::Tensor& indices = held.indices;
  check_indices_composed(indices, held.table_rows);
  at::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  if (weight.size(0) == 0 || weight.is_meta()) {
    return at::zeros(sizes, weight.options());
  }
  const at::Tensor local =
      indices.reshape({-1}).to(at::kLong).sub(held.first_row);
  const at::Tensor away = local.lt(0).bitwise_or_(local.ge(weight.size(0)));
  return weight.index_select(0, local.masked_fill(away, 0))
      .masked_fill_(away.unsqueeze(1), 0)
      .view(sizes);
}

at::Tensor composed_lookup_backward(
    const at::Tensor& grad,
    const HeldRows& held,
    int64_t padding_idx,
    bool scale_grad_by_freq) {
  if (grad.is_meta()) {
    return at::zeros({held.rows, grad.size(-1)}, grad.options());
  }
  Terms terms = held_terms(grad, held, padding_idx);
  if (scale_grad_by_freq) {
    const auto [distinct, place, counts] = at::_unique2(
        terms.rows,
        /*sorted=*/true,
        /*return_inverse=*/true,
        /*return_counts=*/true);
    terms.grads.div_(counts.index_select(0, place).unsqueeze(1));
  }
  at::Tensor out = at::zeros({held.rows, grad.size(-1)}, terms.grads.options());
  // Unlike index_add_ it adds in one order on every device.
  out.index_put_({terms.rows}, terms.grads, /*accumulate=*/true);
  return out.to(grad.scalar_type());
}

at::Tensor composed_lookup_sparse_backward(
    const at::Tensor& grad, const HeldRows& held, int64_t padding_idx) {
  const Terms terms = held_terms(grad, held, padding_idx);
  return at::_sparse_coo_tensor_unsafe(
             terms.rows.unsqueeze(0),
             terms.grads,
             {held.rows, grad.size(-1)},
             terms.grads.options().layout(at::kSparse))
      .coalesce()
      .to(grad.scalar_type());
}

Route composed_route(const at::Tensor& indices, c10::IntArrayRef bounds) {
  check_indices_composed(indices, bounds.back());
  Route route;
  std::tie(route.wanted, route.place, std::ignore) = at::_unique2(
      indices.to(at::kLong), /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor ends =
      at::searchsorted(
          route.wanted, at::tensor(bounds, indices.options().dtype(at::kLong)))
          .cpu();
  const auto* const end = ends.const_data_ptr<int64_t>();
  for (size_t owner = 0; owner + 1 < bounds.size(); ++owner) {
    route.counts.push_back(end[owner + 1] - end[owner]);
  }
  return route;
}

}  // namespace

void renorm_rows_composed(
    const at::Tensor& weight, const HeldRows& held, const NormLimit& limit) {
  const auto route = route_rows(held.indices, {0, held.table_rows});
  at::Tensor part = weight;
  at::embedding_renorm_(
      part,
      held_rows(route.wanted, held.first_row, held.rows),
      limit.max_norm,
      limit.norm_type);
}

const LookupKernels& LookupKernels::composed() {
  static constexpr LookupKernels kernels{
      composed_lookup,
      composed_lookup_backward,
      composed_lookup_sparse_backward,
      composed_route,
      /*begin_route=*/nullptr,
      renorm_rows_composed};
  return kernels;
}

}  // namespace tessera::detail
