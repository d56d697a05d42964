// Saved tensors as views of the files that hold them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "api/checkpoint/source.h"

namespace tessera::detail {

// The tensor, mapped: where it lies whole in one file, or its pieces are rows
// one after another that fill whole pages. Checksums are verified. Nullopt
// where it must be copied. Writes do not reach the files. Throws c10::Error as
// read_boxes does.
std::optional<at::Tensor> map_tensor(
    const Source& source, const std::string& name, const SavedTensor& saved);

}  // namespace tessera::detail
