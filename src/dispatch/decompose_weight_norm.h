// torch.nn.utils.parametrizations.weight_norm on distributed parameters.
#pragma once

#include <torch/library.h>

namespace tessera::detail {

void register_weight_norm(torch::Library& aten);

}  // namespace tessera::detail
