// Loads on all ranks together, from one checkpoint or the newest whole one.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "api/checkpoint/source.h"

namespace tessera::detail {

struct LoadRequest {
  TensorMap tensors;
  // Called when they are loaded, if given.
  std::function<void()> loaded = {};
};

// What to load, when it is known what there is. May throw.
using RequestFor = std::function<LoadRequest(const Source&)>;

CheckpointInfo load_together(
    const std::string& path,
    const LoadOptions& options,
    const RequestFor& request_for);

std::optional<CheckpointInfo> load_latest_together(
    const std::string& root,
    const LoadOptions& options,
    const RequestFor& request_for);

}  // namespace tessera::detail
