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

// Tells of a collective in which the shard at coordinate `c`, index `i`, sends
// bytes_of(i, c). Does nothing unless somebody listens.
template <typename BytesOf>
void count(const char* collective, MeshDim at, ShardsRef in, BytesOf bytes_of) {
  if (!counting()) return;
  c10::SmallVector<int64_t, 4> ranks;
  c10::SmallVector<int64_t, 4> bytes;
  for (size_t i = 0; i < in.size(); ++i) {
    ranks.push_back(at.mesh.all_ranks()[at.mesh.local_positions()[i]]);
    bytes.push_back(bytes_of(i, coordinate_of(at, i)));
  }
  report(collective, at.mesh.size(at.dim), ranks, bytes);
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
  count("all_reduce", at, in, [&](size_t i, int64_t) {
    return all_reduce_bytes(in[i], n);
  });
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
  count("all_gather", at, in, [&](size_t i, int64_t) {
    return all_gather_bytes(in[i], n);
  });
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
  count("reduce_scatter", at, in, [&](size_t i, int64_t c) {
    return bytes_but(in[i], parts[i][c], in[i].size(dim));
  });
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
    MeshDim at, ShardsRef in, const SplitDim& split, const SplitDim& concat) {
  const int64_t n = at.mesh.size(at.dim);
  check_parts(in, split.dim, split.parts, n);
  check_part_counts(in, concat.parts, n);
  if (!begins(at, in, n)) return {in.begin(), in.end()};
  for (size_t i = 0; i < in.size(); ++i) {
    TORCH_INTERNAL_ASSERT(
        in[i].size(concat.dim) == concat.parts[i][coordinate_of(at, i)]);
  }
  count("all_to_all", at, in, [&](size_t i, int64_t c) {
    return bytes_but(in[i], split.parts[i][c], in[i].size(split.dim));
  });
  const BelowAutograd guard;
  if (in[0].is_meta()) {
    return meta_results(
        at, in, [&](const at::Tensor& shard, int64_t c, size_t i) {
          return empty_exchanged(
              shard,
              split.dim,
              split.parts[i][c],
              concat.dim,
              total(concat.parts[i]));
        });
  }
  return do_all_to_all(at, in, split, concat);
}

Shards Collectives::broadcast(MeshDim at, ShardsRef in) {
  const int64_t n = at.mesh.size(at.dim);
  if (!begins(at, in, n)) return {in.begin(), in.end()};
  count("broadcast", at, in, [&](size_t i, int64_t c) {
    return c == 0 ? all_gather_bytes(in[i], n) : 0;
  });
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
  count("scatter", at, in, [&](size_t i, int64_t c) {
    return c == 0 ? bytes_but(in[i], parts[i][0], in[i].size(dim)) : 0;
  });
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
  count("all_to_all_rows", at, in, [&](size_t i, int64_t c) {
    return bytes_but(in[i], send_rows[i][c], total(send_rows[i]));
  });
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
  if (counting()) {
    c10::SmallVector<int64_t, 4> ranks;
    for (const int64_t position : mesh.local_positions()) {
      ranks.push_back(mesh.all_ranks()[position]);
    }
    const c10::SmallVector<int64_t, 4> bytes(
        ranks.size(), (n - 1) * kAgreeBytes);
    report("agree", n, ranks, bytes);
  }
  const BelowAutograd guard;
  do_agree(mesh, local_error, kind);
}

}  // namespace tessera::detail
