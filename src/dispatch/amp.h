// torch.amp.GradScaler on distributed gradients.
#pragma once

#include <torch/library.h>

namespace tessera::detail {

void register_amp(torch::Library& aten);

}  // namespace tessera::detail
