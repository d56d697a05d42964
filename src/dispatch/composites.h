// Composite ops of ATen that do more than call other ops on their arguments:
// they make plain tensors of their own, or read an argument's memory.
#pragma once

#include <torch/library.h>

namespace tessera::detail {

// Registers them for the distributed key and its autograd key: in inference
// mode the first is asked, otherwise the second.
void register_composites(torch::Library& aten, torch::Library& aten_autograd);

}  // namespace tessera::detail
