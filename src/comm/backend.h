// What a c10d backend is good at. The algorithms of process.cpp are made of
// point-to-point messages and read their thresholds here, so that another
// backend changes numbers, not code.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::detail {

struct BackendTraits {
  // Tensors of other devices are moved to host memory and back.
  bool host_memory_only;
  // An all_reduce of at most this many bytes sends everything to everyone: one
  // trip instead of two.
  int64_t small_bytes;
  // Reductions of more than this stream through buffers of this size.
  int64_t block_bytes;
};

// A backend that connects the ranks of one group.
struct GroupBackend {
  c10::intrusive_ptr<c10d::Backend> backend;
  BackendTraits traits;
};

// Who makes a group.
struct GroupRequest {
  // Keys of this store are the group's alone.
  c10::intrusive_ptr<c10d::Store> store;
  // Ranks of the world, in the order of the group.
  std::vector<int64_t> ranks;
  // This process's place among them.
  int64_t coordinate;
  // All ranks of the world are on this machine: no network is needed.
  bool one_host;
  std::chrono::milliseconds timeout;
};

// True where the library was built with Gloo.
bool has_gloo();

// Connects to the other ranks of the group over Gloo; each of them must call
// this. Throws whatever Gloo throws, and c10::NotImplementedError where the
// library was built without it.
GroupBackend make_gloo(const GroupRequest& request);

}  // namespace tessera::detail
