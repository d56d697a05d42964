// The collectives themselves; process_world.cpp has what they stand on.
#include "comm/process/process_collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/blocking_scope.h"
#include "comm/counting.h"
#include "comm/errors.h"
#include "comm/process/messages.h"
#include "comm/result.h"
#include "comm/result_memory.h"

namespace tessera::detail {

namespace {

// A shard in host memory, which the transports move.
at::Tensor on_host(const at::Tensor& shard) {
  return shard.is_cpu() ? shard : shard.cpu();
}

// A result back on the device of the shard it came from.
Shards deliver(const at::Tensor& out, const at::Tensor& shard) {
  return {out.device() == shard.device() ? out : out.to(shard.device())};
}

// Bytes of the tensor whose slices along `dim` the ranks have.
int64_t gathered_bytes(
    const at::Tensor& shard, int64_t dim, const Parts& parts) {
  int64_t bytes = static_cast<int64_t>(shard.element_size()) * total(parts);
  for (int64_t d = 0; d < shard.dim(); ++d) {
    if (d != dim) bytes *= shard.size(d);
  }
  return bytes;
}

// In how many blocks a tensor is copied while messages move.
int64_t copy_blocks(const at::Tensor& tensor) {
  constexpr int64_t kBlockBytes = int64_t{16} << 20;
  return static_cast<int64_t>(tensor.nbytes()) / kBlockBytes;
}

// Copies a tensor; messages move meanwhile if that takes long.
void copy_moving(
    Messages& messages, const at::Tensor& into, const at::Tensor& from) {
  const int64_t blocks = copy_blocks(from);
  if (blocks < 2) {
    into.copy_(from);
    return;
  }
  const auto sizes = from.sizes();
  const auto dim = std::max_element(sizes.begin(), sizes.end()) - sizes.begin();
  const auto pieces = from.chunk(blocks, dim);
  const auto places = into.chunk(blocks, dim);
  for (size_t i = 0; i < pieces.size(); ++i) {
    places[i].copy_(pieces[i]);
    messages.advance();
  }
}

// Likewise `packed`.
at::Tensor packed_moving(Messages& messages, const at::Tensor& tensor) {
  if (tensor.is_contiguous() || copy_blocks(tensor) < 2) return packed(tensor);
  auto out = empty_result(tensor.sizes(), tensor.options());
  copy_moving(messages, out, tensor);
  return out;
}

// The slices of `out` along one dimension, each filled by another rank.
class ReceivedSlices {
 public:
  // Starts to receive the slice of every other rank, straight into `out` where
  // its memory allows it.
  ReceivedSlices(
      Messages& messages,
      const Group& group,
      const at::Tensor& out,
      int64_t dim,
      const Parts& parts)
      : messages_(messages) {
    const int64_t n = group.size();
    const bool direct = outermost(out.sizes(), dim);
    for (int64_t step = 1; step < n; ++step) {
      const int64_t c = (group.coordinate() + n - step) % n;
      auto slice = out.narrow(dim, offset(parts, c), parts[c]);
      auto memory =
          direct ? slice : empty_result(slice.sizes(), slice.options());
      const auto receipt = messages.receive(c, memory);
      arriving_.push_back({receipt, std::move(slice), std::move(memory)});
    }
  }

  // Waits for all of them and puts those in place that came elsewhere.
  void finish() {
    for (auto& [receipt, slice, memory] : arriving_) {
      messages_.wait(receipt);
      if (!slice.is_same(memory)) copy_moving(messages_, slice, memory);
    }
  }

 private:
  struct Arriving {
    Messages::Receipt receipt;
    at::Tensor slice;
    at::Tensor memory;
  };

  Messages& messages_;
  c10::SmallVector<Arriving, 8> arriving_;
};

// A tensor in slices along a dimension, one a rank.
struct SlicedTensor {
  const at::Tensor& tensor;
  int64_t dim;
  const Parts& parts;

  at::Tensor slice(int64_t c) const {
    return tensor.narrow(dim, offset(parts, c), parts[c]);
  }
};

// Sends each rank its slice of `sent`, and fills `received` with what comes.
void swap_slices(
    Group& group,
    const Call& call,
    const SlicedTensor& sent,
    const SlicedTensor& received) {
  const int64_t n = group.size();
  const int64_t me = group.coordinate();
  Messages messages(group, call);
  ReceivedSlices slices(
      messages, group, received.tensor, received.dim, received.parts);
  for (int64_t step = 1; step < n; ++step) {
    const int64_t c = (me + step) % n;
    // Sent as soon as it is packed: the next is packed meanwhile.
    messages.send(c, packed_moving(messages, sent.slice(c)));
  }
  copy_moving(messages, received.slice(me), sent.slice(me));
  slices.finish();
  messages.finish();
}

}  // namespace

// A collective that runs in a group: nobody else uses the group meanwhile, and
// no lock of the program's language is held. Requires a member of the group.
class ProcessCollectives::Running {
 public:
  Running(ProcessCollectives& world, const Key& key, const Call& call)
      : group_(world.group(key, call)), lock_(group_.mutex()) {}
  Running(ProcessCollectives& world, MeshDim at, const Call& call)
      : Running(world, key_of(at), call) {}

  Group& group() const { return group_; }

 private:
  const BlockingScope blocking_;
  Group& group_;
  const std::lock_guard<std::mutex> lock_;
};

Shards ProcessCollectives::do_all_reduce(
    MeshDim at, ShardsRef in, ReduceOp op) {
  Call call = this->call(CollectiveKind::AllReduce, at, in[0]);
  call.reduction = static_cast<uint8_t>(op);
  if (auto* const device = device_group(at, call, in[0])) {
    return {device->all_reduce(call, in[0], op)};
  }
  const Running running(*this, at, call);
  const at::Tensor shard = packed(on_host(in[0]));
  const at::Tensor out = empty_result(shard.sizes(), shard.options());
  FlatReduction{running.group(), call, options_.reduce_sizes, op}.all_reduce(
      shard.view({-1}), out.view({-1}));
  return deliver(out, in[0]);
}

Shards ProcessCollectives::do_all_gather(
    MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) {
  Call call = this->call(CollectiveKind::AllGather, at, in[0]);
  call.bytes = gathered_bytes(in[0], dim, parts[0]);
  if (auto* const device = device_group(at, call, in[0])) {
    return {device->all_gather(call, in[0], dim, parts[0])};
  }
  const Running running(*this, at, call);
  Group& group = running.group();
  const int64_t me = group.coordinate();
  const at::Tensor shard = on_host(in[0]);
  const at::Tensor out = empty_resized(shard, dim, total(parts[0]));
  Messages messages(group, call);
  ReceivedSlices slices(messages, group, out, dim, parts[0]);
  const at::Tensor mine = packed(shard);
  messages.send_to_all(mine);
  copy_moving(
      messages, out.narrow(dim, offset(parts[0], me), parts[0][me]), mine);
  slices.finish();
  messages.finish();
  return deliver(out, in[0]);
}

Shards ProcessCollectives::do_reduce_scatter(
    MeshDim at, ShardsRef in, int64_t dim, PartsRef parts, ReduceOp op) {
  Call call = this->call(CollectiveKind::ReduceScatter, at, in[0]);
  call.reduction = static_cast<uint8_t>(op);
  if (auto* const device = device_group(at, call, in[0])) {
    return {device->reduce_scatter(call, in[0], dim, parts[0], op)};
  }
  const Running running(*this, at, call);
  Group& group = running.group();
  const at::Tensor shard = on_host(in[0]);
  const at::Tensor out =
      empty_resized(shard, dim, parts[0][group.coordinate()]);
  c10::SmallVector<at::Tensor, 8> pieces;
  int64_t start = 0;
  for (const int64_t size : parts[0]) {
    pieces.push_back(packed(shard.narrow(dim, start, size)).view({-1}));
    start += size;
  }
  FlatReduction{group, call, options_.reduce_sizes, op}.reduce_scatter(
      pieces, out.view({-1}));
  return deliver(out, in[0]);
}

Shards ProcessCollectives::do_all_to_all(
    MeshDim at, ShardsRef in, const SplitDim& split, const SplitDim& concat) {
  const Call call = this->call(CollectiveKind::AllToAll, at, in[0]);
  if (auto* const device = device_group(at, call, in[0])) {
    return {device->all_to_all(
        call, in[0], split.dim, split.parts[0], concat.dim, concat.parts[0])};
  }
  const Running running(*this, at, call);
  const int64_t me = running.group().coordinate();
  const Parts& sent = split.parts[0];
  const Parts& received = concat.parts[0];
  const at::Tensor shard = on_host(in[0]);
  const at::Tensor out =
      empty_exchanged(shard, split.dim, sent[me], concat.dim, total(received));
  swap_slices(
      running.group(),
      call,
      {shard, split.dim, sent},
      {out, concat.dim, received});
  return deliver(out, in[0]);
}

Shards ProcessCollectives::do_broadcast(MeshDim at, ShardsRef in) {
  const Call call = this->call(CollectiveKind::Broadcast, at, in[0]);
  if (auto* const device = device_group(at, call, in[0])) {
    return {device->broadcast(call, in[0])};
  }
  const Running running(*this, at, call);
  const at::Tensor shard = on_host(in[0]);
  Messages messages(running.group(), call);
  at::Tensor out;
  if (running.group().coordinate() == 0) {
    const at::Tensor sent = packed(shard);
    messages.send_to_all(sent);
    out = empty_result(shard.sizes(), shard.options());
    copy_moving(messages, out, sent);
  } else {
    out = empty_result(shard.sizes(), shard.options());
    messages.receive(0, out);
  }
  messages.finish();
  return deliver(out, in[0]);
}

Shards ProcessCollectives::do_scatter(
    MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) {
  const Call call = this->call(CollectiveKind::Scatter, at, in[0]);
  if (auto* const device = device_group(at, call, in[0])) {
    return {device->scatter(call, in[0], dim, parts[0])};
  }
  const Running running(*this, at, call);
  Group& group = running.group();
  const int64_t me = group.coordinate();
  const at::Tensor shard = on_host(in[0]);
  Messages messages(group, call);
  at::Tensor out;
  if (me == 0) {
    int64_t start = parts[0][0];
    for (int64_t c = 1; c < group.size(); ++c) {
      messages.send(
          c, packed_moving(messages, shard.narrow(dim, start, parts[0][c])));
      start += parts[0][c];
    }
    out = empty_resized(shard, dim, parts[0][0]);
    copy_moving(messages, out, shard.narrow(dim, 0, parts[0][0]));
  } else {
    out = empty_resized(shard, dim, parts[0][me]);
    messages.receive(0, out);
  }
  messages.finish();
  return deliver(out, in[0]);
}

Shards ProcessCollectives::do_all_to_all_rows(
    MeshDim at, ShardsRef in, PartsRef send_rows, PartsRef recv_rows) {
  const Call call = this->call(CollectiveKind::AllToAllRows, at, in[0]);
  if (auto* const device = device_group(at, call, in[0])) {
    return {device->all_to_all_rows(call, in[0], send_rows[0], recv_rows[0])};
  }
  const Running running(*this, at, call);
  const at::Tensor shard = packed(on_host(in[0]));
  const at::Tensor out = empty_resized(shard, 0, total(recv_rows[0]));
  swap_slices(
      running.group(), call, {shard, 0, send_rows[0]}, {out, 0, recv_rows[0]});
  return deliver(out, in[0]);
}

void ProcessCollectives::do_agree(
    const DeviceMesh& mesh, const std::string& local_error, ErrorKind kind) {
  Call call{CollectiveKind::Agree, &mesh, -1, timeout_.load()};
  call.bytes = kAgreeBytes * mesh.size();
  const Running running(
      *this, Key{mesh.device_type(), mesh.ranks(launch_.rank)}, call);
  Group& group = running.group();
  const int64_t n = group.size();
  const int64_t me = group.coordinate();
  // A length that comes from another rank is not believed.
  constexpr int64_t kMostBytes = 1 << 20;
  std::string text = shortened(local_error, kMostBytes);

  // From each rank the length of its text and the kind of its error.
  const at::Tensor verdicts = at::empty({n, 2}, at::kLong);
  static_assert(kAgreeBytes == 2 * sizeof(int64_t));
  auto* verdict = verdicts.data_ptr<int64_t>();
  verdict[2 * me] = static_cast<int64_t>(text.size());
  verdict[2 * me + 1] = static_cast<int64_t>(kind);
  Messages messages(group, call);
  for (int64_t c = 0; c < n; ++c) {
    if (c != me) messages.receive(c, verdicts.select(0, c));
  }
  messages.send_to_all(verdicts.select(0, me));
  messages.finish();

  int64_t first = 0;
  while (first < n && verdict[2 * first] == 0) ++first;
  if (first == n) return;
  const int64_t length = verdict[2 * first];
  TORCH_CHECK(
      length > 0 && length <= kMostBytes,
      tagged_rank(call, launch_.rank),
      " was told by rank ",
      group.ranks()[first],
      " of an error of ",
      length,
      " bytes");
  text.resize(length);
  const at::Tensor bytes = at::from_blob(
      text.data(), {static_cast<int64_t>(text.size())}, at::kByte);
  if (first == me) {
    messages.send_to_all(bytes);
  } else {
    messages.receive(first, bytes);
  }
  messages.finish();
  throw_error(
      static_cast<ErrorKind>(verdict[2 * first + 1]),
      c10::str(text, " (rank ", group.ranks()[first], ")"));
}

void ProcessCollectives::barrier() {
  const int64_t n = launch_.size;
  if (n == 1) return;
  const Call call{CollectiveKind::Barrier, nullptr, -1, timeout_.load()};
  Key key{"", std::vector<int64_t>(n)};
  std::iota(key.ranks.begin(), key.ranks.end(), 0);
  const Running running(*this, key, call);
  const at::Tensor signs = at::zeros({n}, at::kByte);
  Messages messages(running.group(), call);
  for (int64_t c = 0; c < n; ++c) {
    if (c != launch_.rank) messages.receive(c, signs.narrow(0, c, 1));
  }
  messages.send_to_all(signs.narrow(0, launch_.rank, 1));
  messages.finish();
}

}  // namespace tessera::detail
