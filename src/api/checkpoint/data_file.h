// Writes the file of one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "api/checkpoint/save_plan.h"

namespace tessera::detail {

// Writes header and pieces, syncs and closes the file. Returns the checksums of
// the chunks. `pieces` are those of the plan, on any device, with any strides;
// what lies elsewhere or otherwise is copied some rows at a time.
std::vector<int64_t> write_data_file(
    const std::string& path,
    const PlannedFile& plan,
    const std::vector<at::Tensor>& pieces);

}  // namespace tessera::detail
