// The hyperparameters of torch's C++ optimizers, by the names that Python's
// have. Both languages write and read them alike.
#pragma once

#include <map>
#include <string>

#include "api/checkpoint/source.h"

namespace tessera::detail {

using NamesOfParameters = std::map<const void*, std::string>;

// Throws c10::ValueError for a parameter that has no name.
const std::string& parameter_name(
    const at::Tensor& parameter, const NamesOfParameters& names);

// The groups of parameters as tessera.checkpoint writes them: JSON, a list of
// the options of each group and the names of its parameters.
std::string param_groups_text(
    torch::optim::Optimizer& optimizer, const NamesOfParameters& names);

// Sets the options that `text` has. A group is found by the name of its first
// parameter: groups may be in another order. Options that the optimizer does
// not have are left out. Throws c10::Error, which begins with `where`, if the
// text is none of that kind.
void restore_param_groups(
    torch::optim::Optimizer& optimizer,
    const NamesOfParameters& names,
    const std::string& text,
    const std::string& where);

}  // namespace tessera::detail
