#include "comm/collectives.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include "comm/counting.h"
#include "comm/errors.h"
#include "comm/reduce.h"
#include "comm/result.h"

namespace tessera::detail {

namespace {

using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

// What a collective in groups of `n` begins with. False: there is nothing to
// do, since no rank of the mesh lives here or each is alone in its group.
bool begins(MeshDim at, ShardsRef in, int64_t n) {
  TORCH_INTERNAL_ASSERT(
      in.size() == at.mesh.local_positions().size(),
      in.size(),
      " shards for ",
      at.mesh.str());
  return !in.empty() && n > 1;
}

// The coordinate of a shard's rank in its group.
int64_t coordinate_of(MeshDim at, size_t shard) {
  return at.mesh.coordinate(at.mesh.local_positions()[shard], at.dim);
}

// What a collective gives for meta tensors: make(shard, its coordinate, index).
template <typename Make>
Shards meta_results(MeshDim at, ShardsRef in, Make make) {
  Shards out;
  for (size_t i = 0; i < in.size(); ++i) {
    out.push_back(make(in[i], coordinate_of(at, i), i));
  }
  return out;
}

}  // namespace

Shards Collectives::all_reduce(MeshDim at, ShardsRef in, ReduceOp op) {
  const int64_t n = at.mesh.size(at.dim);
  if (!begins(at, in, n)) return {in.begin(), in.end()};
  check_reducible(op, in[0].scalar_type(), "all_reduce");
  if (counting()) report("all_reduce", n, all_reduce_bytes(in[0], n));
  const BelowAutograd guard;
  if (in[0].is_meta()) {
    return meta_results(at, in, [](const at::Tensor& shard, int64_t, size_t) {
      return fresh_copy(shard);
    });
  }
  return do_all_reduce(at, in, op);
}

Shards Collectives::all_gather(
    MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) {
  const int64_t n = at.mesh.size(at.dim);
  check_part_counts(in, parts, n);
  if (!begins(at, in, n)) return {in.begin(), in.end()};
  for (size_t i = 0; i < in.size(); ++i) {
    TORCH_INTERNAL_ASSERT(in[i].size(dim) == parts[i][coordinate_of(at, i)]);
  }
  if (counting()) report("all_gather", n, all_gather_bytes(in[0], n));
  const BelowAutograd guard;
  if (in[0].is_meta()) {
    return meta_results(
        at, in, [&](const at::Tensor& shard, int64_t, size_t i) {
          return empty_resized(shard, dim, total(parts[i]));
        });
  }
  return do_all_gather(at, in, dim, parts);
}

Shards Collectives::reduce_scatter(
    MeshDim at, ShardsRef in, int64_t dim, PartsRef parts, ReduceOp op) {
  const int64_t n = at.mesh.size(at.dim);
  check_parts(in, dim, parts, n);
  if (!begins(at, in, n)) return {in.begin(), in.end()};
  check_reducible(op, in[0].scalar_type(), "reduce_scatter");
  if (counting()) {
    const int64_t kept = parts[0][coordinate_of(at, 0)];
    report("reduce_scatter", n, bytes_but(in[0], kept, in[0].size(dim)));
  }
  const BelowAutograd guard;
  if (in[0].is_meta()) {
    return meta_results(
        at, in, [&](const at::Tensor& shard, int64_t c, size_t i) {
          return empty_resized(shard, dim, parts[i][c]);
        });
  }
  return do_reduce_scatter(at, in, dim, parts, op);
}

Shards Collectives::all_to_all(
    MeshDim at,
    ShardsRef in,
    int64_t split_dim,
    PartsRef split_parts,
    int64_t concat_dim,
    PartsRef concat_parts) {
  const int64_t n = at.mesh.size(at.dim);
  check_parts(in, split_dim, split_parts, n);
  check_part_counts(in, concat_parts, n);
  if (!begins(at, in, n)) return {in.begin(), in.end()};
  for (size_t i = 0; i < in.size(); ++i) {
    TORCH_INTERNAL_ASSERT(
        in[i].size(concat_dim) == concat_parts[i][coordinate_of(at, i)]);
  }
  if (counting()) {
    const int64_t kept = split_parts[0][coordinate_of(at, 0)];
    report("all_to_all", n, bytes_but(in[0], kept, in[0].size(split_dim)));
  }
  const BelowAutograd guard;
  if (in[0].is_meta()) {
    return meta_results(
        at, in, [&](const at::Tensor& shard, int64_t c, size_t i) {
          return empty_exchanged(
              shard,
              split_dim,
              split_parts[i][c],
              concat_dim,
              total(concat_parts[i]));
        });
  }
  return do_all_to_all(
      at, in, split_dim, split_parts, concat_dim, concat_parts);
}

Shards Collectives::broadcast(MeshDim at, ShardsRef in) {
  const int64_t n = at.mesh.size(at.dim);
  if (!begins(at, in, n)) return {in.begin(), in.end()};
  if (counting()) {
    const bool root = coordinate_of(at, 0) == 0;
    report("broadcast", n, root ? all_gather_bytes(in[0], n) : 0);
  }
  const BelowAutograd guard;
  if (in[0].is_meta()) {
    return meta_results(at, in, [](const at::Tensor& shard, int64_t, size_t) {
      return fresh_copy(shard);
    });
  }
  return do_broadcast(at, in);
}

Shards Collectives::scatter(
    MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) {
  const int64_t n = at.mesh.size(at.dim);
  check_parts(in, dim, parts, n);
  if (!begins(at, in, n)) return {in.begin(), in.end()};
  if (counting()) {
    const bool root = coordinate_of(at, 0) == 0;
    const int64_t sent = bytes_but(in[0], parts[0][0], in[0].size(dim));
    report("scatter", n, root ? sent : 0);
  }
  const BelowAutograd guard;
  if (in[0].is_meta()) {
    return meta_results(
        at, in, [&](const at::Tensor& shard, int64_t c, size_t i) {
          return empty_resized(shard, dim, parts[i][c]);
        });
  }
  return do_scatter(at, in, dim, parts);
}

Shards Collectives::all_to_all_rows(
    MeshDim at, ShardsRef in, PartsRef send_rows, PartsRef recv_rows) {
  const int64_t n = at.mesh.size(at.dim);
  check_parts(in, 0, send_rows, n);
  check_part_counts(in, recv_rows, n);
  if (!begins(at, in, n)) return {in.begin(), in.end()};
  for (size_t i = 0; i < in.size(); ++i) {
    const int64_t c = coordinate_of(at, i);
    TORCH_INTERNAL_ASSERT(send_rows[i][c] == recv_rows[i][c]);
  }
  if (counting()) {
    const int64_t kept = send_rows[0][coordinate_of(at, 0)];
    report("all_to_all_rows", n, bytes_but(in[0], kept, total(send_rows[0])));
  }
  const BelowAutograd guard;
  if (in[0].is_meta()) {
    return meta_results(
        at, in, [&](const at::Tensor& shard, int64_t, size_t i) {
          return empty_resized(shard, 0, total(recv_rows[i]));
        });
  }
  return do_all_to_all_rows(at, in, send_rows, recv_rows);
}

void Collectives::agree(
    const DeviceMesh& mesh, const std::string& local_error, ErrorKind kind) {
  const int64_t n = mesh.size();
  if (mesh.local_positions().empty() || n == 1) {
    if (!local_error.empty()) throw_error(kind, local_error);
    return;
  }
  if (counting()) report("agree", n, (n - 1) * kAgreeBytes);
  const BelowAutograd guard;
  do_agree(mesh, local_error, kind);
}

}  // namespace tessera::detail
