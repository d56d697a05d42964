#include "embedding/part_ops.h"
#include "embedding/embedding.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include "dispatch/kernel.h"
#include "kernels/gather/gather.h"
#include "kernels/lookup/embedding.h"

namespace tessera::detail {

namespace {

using OptionalInt = std::optional<int64_t>;

constexpr const char* kLookup =
    "lookup(Tensor weight, Tensor indices, int padding_idx=-1, "
    "bool scale_grad_by_freq=False, bool sparse=False, *, "
    "int first_row=0, int? table_rows=None) -> Tensor";
constexpr const char* kLookupBackward =
    "lookup_backward(Tensor grad, Tensor indices, Tensor weight, "
    "int padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False, *, "
    "int first_row=0, int? table_rows=None) -> Tensor";
constexpr const char* kGatherPart =
    "gather_part(Tensor self, int dim, Tensor index, *, int first=0, "
    "int? size=None) -> Tensor";
constexpr const char* kGatherPartBackward =
    "gather_part_backward(Tensor grad, int dim, Tensor index, Tensor self, *, "
    "int first=0, int? size=None) -> Tensor";

void check_lookup_table(const at::Tensor& weight) {
  TORCH_CHECK(
      weight.dim() == 2,
      "[embedding] expected a table of two dimensions, but got one of shape ",
      weight.sizes());
}

void check_grad(
    const at::Tensor& grad,
    const at::Tensor& indices,
    const at::Tensor& weight) {
  check_lookup_table(weight);
  c10::DimVector wanted(indices.sizes());
  wanted.push_back(weight.size(1));
  TORCH_CHECK_VALUE(
      grad.sizes() == at::IntArrayRef(wanted),
      "[tessera.lookup_backward] expected a gradient of shape ",
      at::IntArrayRef(wanted),
      ", but got one of shape ",
      grad.sizes());
}

at::Tensor plain_lookup(
    const at::Tensor& weight,
    const at::Tensor& indices,
    int64_t,
    bool,
    bool,
    int64_t first_row,
    OptionalInt table_rows) {
  check_lookup_table(weight);
  return lookup_rows(
      weight, indices, first_row, table_rows.value_or(weight.size(0)));
}

at::Tensor meta_lookup(
    const at::Tensor& weight,
    const at::Tensor& indices,
    int64_t,
    bool,
    bool,
    int64_t,
    OptionalInt) {
  check_lookup_table(weight);
  c10::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return at::empty(sizes, weight.options());
}

at::Tensor plain_lookup_backward(
    const at::Tensor& grad,
    const at::Tensor& indices,
    const at::Tensor& weight,
    int64_t padding_idx,
    bool scale_grad_by_freq,
    bool sparse,
    int64_t first_row,
    OptionalInt table_rows) {
  check_grad(grad, indices, weight);
  const int64_t rows = weight.size(0);
  const int64_t all_rows = table_rows.value_or(rows);
  if (sparse) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !scale_grad_by_freq,
        "[embedding] scale_grad_by_freq is not supported for sparse "
        "gradients: leave one of them off");
    return lookup_rows_sparse_backward(
        grad, indices, first_row, rows, all_rows, padding_idx);
  }
  return lookup_rows_backward(
      grad,
      indices,
      first_row,
      rows,
      all_rows,
      padding_idx,
      scale_grad_by_freq);
}

at::Tensor meta_lookup_backward(
    const at::Tensor& grad,
    const at::Tensor& indices,
    const at::Tensor& weight,
    int64_t,
    bool,
    bool,
    int64_t,
    OptionalInt) {
  check_grad(grad, indices, weight);
  return at::empty(weight.sizes(), grad.options());
}

int64_t extent(const at::Tensor& self, int64_t dim) {
  return self.dim() == 0 ? 1 : self.size(dim);
}

at::Tensor plain_gather_part(
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    int64_t first,
    OptionalInt size) {
  return gather_part(self, dim, index, first, size.value_or(extent(self, dim)));
}

at::Tensor meta_gather_part(
    const at::Tensor& self,
    int64_t,
    const at::Tensor& index,
    int64_t,
    OptionalInt) {
  return at::empty(index.sizes(), self.options());
}

at::Tensor plain_gather_part_backward(
    const at::Tensor& grad,
    int64_t dim,
    const at::Tensor& index,
    const at::Tensor& self,
    int64_t first,
    OptionalInt size) {
  return gather_part_backward(
      grad, dim, index, self.sizes(), first, size.value_or(extent(self, dim)));
}

at::Tensor meta_gather_part_backward(
    const at::Tensor& grad,
    int64_t,
    const at::Tensor&,
    const at::Tensor& self,
    int64_t,
    OptionalInt) {
  return at::empty(self.sizes(), grad.options());
}

}  // namespace

void register_part_ops(OpRegistry& ops) {
  ops.define("lookup", kLookup, &plain_lookup, &meta_lookup);
  ops.define(
      "lookup_backward",
      kLookupBackward,
      &plain_lookup_backward,
      &meta_lookup_backward);
  ops.define("gather_part", kGatherPart, &plain_gather_part, &meta_gather_part);
  ops.define(
      "gather_part_backward",
      kGatherPartBackward,
      &plain_gather_part_backward,
      &meta_gather_part_backward);
}

}  // namespace tessera::detail
