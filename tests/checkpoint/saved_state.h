// What the tests of faults save, and what they find again.
#pragma once

#include <gtest/gtest.h>
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>

namespace tessera::testing {

// Two files of ranks, one tensor larger than a chunk.
inline TensorMap state_of(const DeviceMesh& mesh, double value) {
  return {
      {"table", full({1024, 300}, value, mesh, {Shard(0)})},
      {"bias", full({7}, value, mesh, {Replicate()})},
      {"plain", torch::full({3}, value)}};
}

// What the newest whole checkpoint holds; throws where it is a mixture.
inline double loaded_value(const std::string& root, const DeviceMesh& mesh) {
  auto state = state_of(mesh, -1);
  const auto found = load_latest(root, state);
  if (!found) return 0;
  const auto value = state["plain"][0].item<double>();
  for (const auto& [name, tensor] : state) {
    const auto all =
        is_dtensor(tensor) ? DTensor(tensor).full_tensor() : tensor;
    TORCH_CHECK((all == value).all().item<bool>(), name, " is a mixture");
  }
  return value;
}

// Nothing but checkpoints and the lock.
inline void expect_clean(const std::string& root) {
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const auto name = entry.path().filename().string();
    EXPECT_TRUE(name == ".lock" || name.find('.') == std::string::npos) << name;
  }
}

}  // namespace tessera::testing
