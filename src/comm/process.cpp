// The collectives themselves; process_groups.cpp has what they stand on.
#include "comm/process.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <utility>

#include "comm/counting.h"
#include "comm/flat_reduce.h"
#include "comm/reduce.h"
#include "comm/result.h"
#include "comm/result_memory.h"

namespace tessera::detail {

namespace {

// A shard in memory that the backend reaches.
at::Tensor reachable(const Group& group, const at::Tensor& shard) {
  if (!group.traits().host_memory_only || shard.is_cpu()) return shard;
  return shard.cpu();
}

// A result back on the device of the shard it came from.
Shards deliver(const at::Tensor& out, const at::Tensor& shard) {
  return {out.device() == shard.device() ? out : out.to(shard.device())};
}

// The bytes to send: contiguous, with what conj() and neg() left pending done.
at::Tensor packed(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
    return tensor;
  }
  return fresh_copy(tensor);
}

// The slices of `out` along one dimension, each filled by another rank.
class Slices {
 public:
  // Starts to receive the slice of every other rank, straight into `out` where
  // its memory allows it.
  Slices(
      Exchange& exchange,
      const Group& group,
      const at::Tensor& out,
      int64_t dim,
      const Parts& parts)
      : exchange_(exchange) {
    const int64_t n = group.size();
    const bool direct = outermost(out.sizes(), dim);
    for (int64_t step = 1; step < n; ++step) {
      const int64_t c = (group.coordinate() + n - step) % n;
      auto slice = out.narrow(dim, offset(parts, c), parts[c]);
      auto memory =
          direct ? slice : empty_result(slice.sizes(), slice.options());
      const size_t message = exchange.receive(c, memory);
      arriving_.push_back({message, std::move(slice), std::move(memory)});
    }
  }

  // Waits for all of them and puts those in place that came elsewhere.
  void finish() {
    for (auto& [message, slice, memory] : arriving_) {
      exchange_.wait(message);
      if (!slice.is_same(memory)) slice.copy_(memory);
    }
  }

 private:
  struct Arriving {
    size_t message;
    at::Tensor slice;
    at::Tensor memory;
  };

  Exchange& exchange_;
  c10::SmallVector<Arriving, 8> arriving_;
};

}  // namespace

Shards ProcessCollectives::all_reduce(MeshDim at, ShardsRef in, ReduceOp op) {
  const int64_t n = at.mesh.size(at.dim);
  if (in.empty() || n == 1) return {in.begin(), in.end()};
  check_reducible(op, in[0].scalar_type(), "all_reduce");
  if (counting()) report("all_reduce", n, all_reduce_bytes(in[0], n));
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (in[0].is_meta()) return {fresh_copy(in[0])};

  const Call call = this->call("all_reduce", at);
  Group& group = this->group(at, call);
  const std::lock_guard lock(group.mutex());
  const at::Tensor shard = packed(reachable(group, in[0]));
  const at::Tensor out = empty_result(shard.sizes(), shard.options());
  flat_all_reduce(group, call, shard.view({-1}), out.view({-1}), op);
  return deliver(out, in[0]);
}

Shards ProcessCollectives::all_gather(
    MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) {
  const int64_t n = at.mesh.size(at.dim);
  check_part_counts(in, parts, n);
  if (in.empty() || n == 1) return {in.begin(), in.end()};
  if (counting()) report("all_gather", n, all_gather_bytes(in[0], n));
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const int64_t size = total(parts[0]);
  if (in[0].is_meta()) return {empty_resized(in[0], dim, size)};

  const Call call = this->call("all_gather", at);
  Group& group = this->group(at, call);
  const std::lock_guard lock(group.mutex());
  const int64_t me = group.coordinate();
  const at::Tensor shard = reachable(group, in[0]);
  TORCH_INTERNAL_ASSERT(shard.size(dim) == parts[0][me]);
  const at::Tensor out = empty_resized(shard, dim, size);
  Exchange exchange(group, call);
  Slices slices(exchange, group, out, dim, parts[0]);
  const at::Tensor mine = packed(shard);
  for (int64_t step = 1; step < n; ++step) {
    exchange.send((me + step) % n, mine);
  }
  out.narrow(dim, offset(parts[0], me), parts[0][me]).copy_(mine);
  slices.finish();
  exchange.finish();
  return deliver(out, in[0]);
}

Shards ProcessCollectives::reduce_scatter(
    MeshDim at, ShardsRef in, int64_t dim, PartsRef parts, ReduceOp op) {
  const int64_t n = at.mesh.size(at.dim);
  check_parts(in, dim, parts, n);
  if (in.empty() || n == 1) return {in.begin(), in.end()};
  check_reducible(op, in[0].scalar_type(), "reduce_scatter");
  const int64_t me = at.mesh.coordinate(at.mesh.local_positions()[0], at.dim);
  if (counting()) {
    const int64_t kept = parts[0][me];
    report("reduce_scatter", n, bytes_but(in[0], kept, in[0].size(dim)));
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (in[0].is_meta()) return {empty_resized(in[0], dim, parts[0][me])};

  const Call call = this->call("reduce_scatter", at);
  Group& group = this->group(at, call);
  const std::lock_guard lock(group.mutex());
  const at::Tensor shard = reachable(group, in[0]);
  const at::Tensor out = empty_resized(shard, dim, parts[0][me]);
  c10::SmallVector<at::Tensor, 8> pieces;
  int64_t start = 0;
  for (const int64_t size : parts[0]) {
    pieces.push_back(packed(shard.narrow(dim, start, size)).view({-1}));
    start += size;
  }
  flat_reduce_scatter(group, call, pieces, out.view({-1}), op);
  return deliver(out, in[0]);
}

Shards ProcessCollectives::all_to_all(
    MeshDim at,
    ShardsRef in,
    int64_t split_dim,
    PartsRef split_parts,
    int64_t concat_dim,
    PartsRef concat_parts) {
  const int64_t n = at.mesh.size(at.dim);
  check_parts(in, split_dim, split_parts, n);
  check_part_counts(in, concat_parts, n);
  if (in.empty() || n == 1) return {in.begin(), in.end()};
  const auto& split = split_parts[0];
  const auto& concat = concat_parts[0];
  const int64_t me = at.mesh.coordinate(at.mesh.local_positions()[0], at.dim);
  if (counting()) {
    report("all_to_all", n, bytes_but(in[0], split[me], total(split)));
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto result = [&](const at::Tensor& shard) {
    return empty_exchanged(
        shard, split_dim, split[me], concat_dim, total(concat));
  };
  if (in[0].is_meta()) return {result(in[0])};

  const Call call = this->call("all_to_all", at);
  Group& group = this->group(at, call);
  const std::lock_guard lock(group.mutex());
  const at::Tensor shard = reachable(group, in[0]);
  TORCH_INTERNAL_ASSERT(shard.size(concat_dim) == concat[me]);
  const at::Tensor out = result(shard);
  Exchange exchange(group, call);
  Slices slices(exchange, group, out, concat_dim, concat);
  const auto piece = [&](int64_t c) {
    return shard.narrow(split_dim, offset(split, c), split[c]);
  };
  for (int64_t step = 1; step < n; ++step) {
    const int64_t c = (me + step) % n;
    // Sent as soon as it is packed: the next is packed meanwhile.
    exchange.send(c, packed(piece(c)));
  }
  out.narrow(concat_dim, offset(concat, me), concat[me]).copy_(piece(me));
  slices.finish();
  exchange.finish();
  return deliver(out, in[0]);
}

Shards ProcessCollectives::broadcast(MeshDim at, ShardsRef in) {
  const int64_t n = at.mesh.size(at.dim);
  if (in.empty() || n == 1) return {in.begin(), in.end()};
  const int64_t me = at.mesh.coordinate(at.mesh.local_positions()[0], at.dim);
  if (counting()) {
    report("broadcast", n, me == 0 ? all_gather_bytes(in[0], n) : 0);
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (in[0].is_meta()) return {fresh_copy(in[0])};

  const Call call = this->call("broadcast", at);
  Group& group = this->group(at, call);
  const std::lock_guard lock(group.mutex());
  const at::Tensor shard = reachable(group, in[0]);
  Exchange exchange(group, call);
  at::Tensor out;
  if (me == 0) {
    out = fresh_copy(shard);
    for (int64_t c = 1; c < n; ++c) exchange.send(c, out);
  } else {
    out = empty_result(shard.sizes(), shard.options());
    exchange.receive(0, out);
  }
  exchange.finish();
  return deliver(out, in[0]);
}

Shards ProcessCollectives::scatter(
    MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) {
  const int64_t n = at.mesh.size(at.dim);
  check_parts(in, dim, parts, n);
  if (in.empty() || n == 1) return {in.begin(), in.end()};
  const int64_t me = at.mesh.coordinate(at.mesh.local_positions()[0], at.dim);
  if (counting()) {
    const int64_t sent = bytes_but(in[0], parts[0][0], in[0].size(dim));
    report("scatter", n, me == 0 ? sent : 0);
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (in[0].is_meta()) return {empty_resized(in[0], dim, parts[0][me])};

  const Call call = this->call("scatter", at);
  Group& group = this->group(at, call);
  const std::lock_guard lock(group.mutex());
  const at::Tensor shard = reachable(group, in[0]);
  Exchange exchange(group, call);
  at::Tensor out;
  if (me == 0) {
    int64_t start = parts[0][0];
    for (int64_t c = 1; c < n; ++c) {
      exchange.send(c, packed(shard.narrow(dim, start, parts[0][c])));
      start += parts[0][c];
    }
    out = fresh_copy(shard.narrow(dim, 0, parts[0][0]));
  } else {
    out = empty_resized(shard, dim, parts[0][me]);
    exchange.receive(0, out);
  }
  exchange.finish();
  return deliver(out, in[0]);
}

Shards ProcessCollectives::all_to_all_rows(
    MeshDim at, ShardsRef in, PartsRef send_rows, PartsRef recv_rows) {
  const int64_t n = at.mesh.size(at.dim);
  check_parts(in, 0, send_rows, n);
  check_part_counts(in, recv_rows, n);
  if (in.empty() || n == 1) return {in.begin(), in.end()};
  const int64_t me = at.mesh.coordinate(at.mesh.local_positions()[0], at.dim);
  const auto& sent = send_rows[0];
  const auto& received = recv_rows[0];
  if (counting()) {
    report("all_to_all_rows", n, bytes_but(in[0], sent[me], total(sent)));
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (in[0].is_meta()) return {empty_resized(in[0], 0, total(received))};

  const Call call = this->call("all_to_all_rows", at);
  Group& group = this->group(at, call);
  const std::lock_guard lock(group.mutex());
  TORCH_INTERNAL_ASSERT(sent[me] == received[me]);
  const at::Tensor shard = packed(reachable(group, in[0]));
  const at::Tensor out = empty_resized(shard, 0, total(received));
  Exchange exchange(group, call);
  Slices slices(exchange, group, out, 0, received);
  for (int64_t step = 1; step < n; ++step) {
    const int64_t c = (me + step) % n;
    exchange.send(c, shard.narrow(0, offset(sent, c), sent[c]));
  }
  out.narrow(0, offset(received, me), received[me])
      .copy_(shard.narrow(0, offset(sent, me), sent[me]));
  slices.finish();
  exchange.finish();
  return deliver(out, in[0]);
}

}  // namespace tessera::detail
