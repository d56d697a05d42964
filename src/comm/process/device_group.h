// The collectives of one group on shards of a device, through a c10d backend
// (NCCL). They are put on the current stream and return before they have run.
//
// The backend moves bytes and nothing else; reductions are made of the terms
// that it brings, in the order of the group. So results have the bits of the
// other worlds, whatever the backend's algorithm, and every dtype works.
//
// A collective that is not done within the World's timeout, or whose backend
// fails, is given up by the watchdog: the error, which names rank, collective
// and group, is raised by the next op on a distributed tensor
// (async_errors.h), and the group refuses all that follows.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "comm/process/group.h"
#include "comm/process/nccl.h"

namespace tessera::detail {

class DeviceGroup {
 public:
  // `backend` has this process at `coordinate` of `ranks`.
  DeviceGroup(
      std::vector<int64_t> ranks, int64_t coordinate, DeviceBackend backend);
  ~DeviceGroup();

  // As their namesakes in Collectives, for the one shard of this process, which
  // is on the backend's device. Throw c10::Error if the group has failed.
  at::Tensor all_reduce(const Call& call, const at::Tensor& in, ReduceOp op);
  at::Tensor all_gather(
      const Call& call, const at::Tensor& in, int64_t dim, const Parts& parts);
  at::Tensor reduce_scatter(
      const Call& call,
      const at::Tensor& in,
      int64_t dim,
      const Parts& parts,
      ReduceOp op);
  at::Tensor all_to_all(
      const Call& call,
      const at::Tensor& in,
      int64_t split_dim,
      const Parts& split,
      int64_t concat_dim,
      const Parts& concat);
  at::Tensor broadcast(const Call& call, const at::Tensor& in);
  at::Tensor scatter(
      const Call& call, const at::Tensor& in, int64_t dim, const Parts& parts);
  at::Tensor all_to_all_rows(
      const Call& call,
      const at::Tensor& in,
      const Parts& sent,
      const Parts& received);

 private:
  struct State;
  class Launch;

  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  // Elements of the flat tensors `from` and `into`, by coordinate.
  void exchange(
      const Call& call,
      const at::Tensor& from,
      const Parts& sent,
      const at::Tensor& into,
      const Parts& received);
  // `into` is flat and n times as large as `from`.
  void gather(const Call& call, const at::Tensor& from, const at::Tensor& into);

  const std::vector<int64_t> ranks_;
  const int64_t coordinate_;
  // Shared with the watchdog.
  const std::shared_ptr<State> state_;
  // By which the flight recorder knows it.
  const uint32_t flight_group_;
  // Collectives of one group follow each other.
  std::mutex mutex_;
  uint32_t sequence_ = 0;
};

// Both meet the other ranks of a group, which all call them, and make it if
// each of them has a GPU of its own and NCCL. Otherwise all get null.
std::unique_ptr<DeviceGroup> make_device_group(
    const GroupRequest& request, const Call& call, c10::Device device);
// For the GPU that is current in this process.
c10::intrusive_ptr<c10d::Backend> make_users_device_backend(
    const GroupRequest& request);

}  // namespace tessera::detail
