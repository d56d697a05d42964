// The state of torch's C++ optimizers, by the names of the parameters.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "api/checkpoint/optimizer_options.h"

namespace tessera::detail {

// "optimizer.state.<parameter>.exp_avg", as Python's has it; further optimizers
// are optimizer_1, optimizer_2.
std::string optimizer_prefix(size_t index);

// Adds the tensors of the state, and the hyperparameters of its groups as a
// value. Throws c10::NotImplementedError for an optimizer that is none of
// Adam, AdamW, Adagrad, RMSprop and SGD; c10::ValueError for a parameter that
// has no name.
void add_optimizer_state(
    torch::optim::Optimizer& optimizer,
    const std::string& prefix,
    const NamesOfParameters& names,
    TensorMap& tensors,
    std::map<std::string, std::string>& values);

// Adds the tensors to load into: those of the optimizer, made where it has none
// yet. A parameter of which nothing was saved is left without state. Returns
// what is to be done when they are loaded.
std::function<void()> prepare_optimizer_state(
    torch::optim::Optimizer& optimizer,
    const std::string& prefix,
    const NamesOfParameters& names,
    const Source& source,
    TensorMap& tensors);

}  // namespace tessera::detail
