// The kernels behind embedding.h, route.h and renorm.h, by device. Same
// contracts, but the arguments were checked.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/lookup/embedding.h"
#include "kernels/lookup/renorm.h"
#include "kernels/lookup/route.h"

namespace tessera::detail {

struct LookupKernels {
  // lookup_rows; `held.rows` are those of `weight`.
  at::Tensor (*forward)(const at::Tensor& weight, const HeldRows& held);
  decltype(lookup_rows_backward)* backward;
  decltype(lookup_rows_sparse_backward)* sparse_backward;
  decltype(route_rows)* route;
  // nullptr where `route` knows its counts at once.
  decltype(start_route)* begin_route;
  decltype(renorm_rows_)* renorm;

  // In one pass: range test, copy of a row or zeros, and the first bad index.
  static const LookupKernels& cpu();
  // A bad index gives zeros and is raised by a later call: see device_errors.h.
  // The sparse gradient and the route wait for the device once, to learn how
  // many rows there are; the route raises bad indices then. Without CUDA's
  // compiler the composed ones.
  static const LookupKernels& cuda();
  // Compositions of ATen ops, for devices without kernels of ours. Finding a
  // bad index waits for the device. On meta tensors, which have no indices to
  // look at, there is no sparse gradient.
  static const LookupKernels& composed();
};

// One that is finished already.
StartedRoute started(Route route);
// `route` of the indices that are not `left_out`, as start_route says.
Route route_without(
    decltype(route_rows)* route,
    const at::Tensor& indices,
    c10::IntArrayRef bounds,
    int64_t left_out);

// The composed renorm, which serves the CPU, too.
decltype(renorm_rows_) renorm_rows_composed;

// Throws c10::IndexError that names the first index outside a table of
// `table_rows` rows. A composition too.
void check_indices_composed(const at::Tensor& indices, int64_t table_rows);

}  // namespace tessera::detail
