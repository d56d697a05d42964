// aten::embedding, aten::_embedding_bag, aten::embedding_renorm_ and
// aten::gather on distributed tensors, and the ops of our own that carry them
// out.
#pragma once

#include "dispatch/op_registry.h"

namespace tessera::detail {

void register_bag_ops(OpRegistry& ops);         // bag_ops.cpp
void register_bag_gradients(OpRegistry& ops);   // bag_gradients.cpp
void register_embedding_bag(OpRegistry& ops);   // embedding_bag.cpp
void register_part_ops(OpRegistry& ops);        // part_ops.cpp
void register_part_gradients(OpRegistry& ops);  // part_gradients.cpp
void register_renorm(OpRegistry& ops);          // renorm.cpp

// All of them.
void register_embeddings(OpRegistry& ops);

}  // namespace tessera::detail
