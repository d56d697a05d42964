// Lookups in a part of a table: what a rank that holds some of the rows of an
// embedding computes. Plain functions of plain tensors, without autograd and
// without communication. On the CPU and, in builds with CUDA's compiler, on
// GPUs each is one fused kernel; elsewhere a composition of ATen ops
// (lookup_kernels.h). On a GPU the error of a bad index is raised by a
// later call (device_errors.h).
//
// Common to all: `indices` is int32 or int64, of any shape and strides, and
// names rows of the whole table of `table_rows` rows; rows [first_row,
// first_row + rows) are held here, `rows` may be 0. An index outside the table
// throws c10::IndexError, which names the first such index. Indices that are
// neither int32 nor int64 throw c10::TypeError. Any number of threads may call
// these at once; the results do not depend on the number of threads that ATen
// uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::detail {

// Indices into a table of `table_rows` rows, of which
// [first_row, first_row + rows) are held here.
struct HeldRows {
  const at::Tensor& indices;
  int64_t first_row;
  int64_t rows;
  int64_t table_rows;
};

// `weight`, [rows, d] of any dtype, holds rows [first_row, first_row + rows).
// Returns a contiguous tensor of the shape of `indices` and d: the row of each
// index where it is held here, zeros elsewhere.
at::Tensor lookup_rows(
    const at::Tensor& weight,
    const at::Tensor& indices,
    int64_t first_row,
    int64_t table_rows);

// The gradient of lookup_rows by `weight`, [rows, d], of the dtype of `grad`,
// which is floating point or complex and of the shape of `indices` and d. Each
// row of `grad` is added to the row of its index where that is held here and is
// not `padding_idx` (a row of the whole table, -1 for none). With
// `scale_grad_by_freq` it is first divided by how often its index occurs in
// `indices`. Terms are added in the order of `indices`; half and bfloat16 are
// added in float and rounded once.
at::Tensor lookup_rows_backward(
    const at::Tensor& grad,
    const HeldRows& held,
    int64_t padding_idx,
    bool scale_grad_by_freq);

// The same gradient without scaling, as a coalesced sparse COO tensor of size
// [rows, d] that stores only the touched rows, ascending. Takes time and
// memory of the order of `indices` and `grad`, whatever the size of the table.
at::Tensor lookup_rows_sparse_backward(
    const at::Tensor& grad, const HeldRows& held, int64_t padding_idx);

}  // namespace tessera::detail
