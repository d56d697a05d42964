// Ops whose derivative formulas know the sizes of their input alone.
#pragma once

#include <torch/library.h>

namespace tessera::detail {

// The gradient of a sum or a mean is expanded from what may be one number: it
// would be replicated, whatever the layout of what was summed, and every rank
// would go on with all of it. For these ops it comes in the input's layout.
void register_gradient_layouts(torch::Library& aten_autograd);

}  // namespace tessera::detail
