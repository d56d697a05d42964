// The one place that knows NCCL, as c10d gives it; no_nccl.cpp stands in where
// torch has none.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::detail {

// A c10d backend for collectives on a device, which run after they return.
struct DeviceBackend {
  c10::intrusive_ptr<c10d::Backend> backend;
  // Gives a question: whether the device is past what this thread has put on
  // its current stream so far. An empty one where nobody may ask, since a CUDA
  // graph is being recorded.
  std::function<std::function<bool()>()> mark;
  // What the backend says is wrong; "" if nothing.
  std::function<std::string()> failure;
};

// A name for the GPU, unlike that of any other GPU of any machine. "" where
// NCCL cannot be used: it was not compiled in, or TESSERA_NCCL=0 is set.
std::string nccl_device_name(c10::Device device);

// Makes the backend of a group whose members all call this, each with a GPU of
// its own. Errors of its collectives are left to who watches them.
// Requires: nccl_device_name is not empty.
DeviceBackend make_nccl(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int64_t>& ranks,
    int64_t coordinate,
    c10::Device device);

// The same for collectives of the user's own: errors are handled as c10d does.
c10::intrusive_ptr<c10d::Backend> make_users_nccl(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int64_t>& ranks,
    int64_t coordinate,
    std::chrono::milliseconds timeout);

}  // namespace tessera::detail
