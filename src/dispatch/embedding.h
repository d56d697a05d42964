// aten::embedding, aten::embedding_renorm_ and aten::gather on distributed
// tensors.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include <string>

namespace tessera::detail {

// For the distributed key, below autograd.
void register_embedding(torch::Library& aten);
// Above autograd's formulas: these have gradients of their own.
void register_embedding_gradients(torch::Library& aten_autograd);

// How a call of aten::embedding would be carried out, as text. Requires: some
// argument is distributed.
std::string explain_embedding(c10::ArrayRef<c10::IValue> args);
// The same of aten::gather and of aten::_embedding_bag.
std::string explain_gather(c10::ArrayRef<c10::IValue> args);
std::string explain_embedding_bag(
    c10::ArrayRef<c10::IValue> args);  // embedding_bag.cpp

void register_renorm(torch::Library& aten);  // renorm.cpp
// aten::_embedding_bag, for the distributed key or its autograd key.
void register_embedding_bag(torch::Library& aten);  // embedding_bag.cpp

}  // namespace tessera::detail
