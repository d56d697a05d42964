// aten::embedding, aten::_embedding_bag and aten::embedding_renorm_ on
// distributed tensors, and the ops of our own that carry them out.
#pragma once

#include <string_view>

#include "dispatch/op_registry.h"

namespace tessera::detail {

// What caused the communication of lookups and bags, as counted.
inline constexpr std::string_view kLookupCause = "aten::embedding";
inline constexpr std::string_view kBagCause = "aten::_embedding_bag";

void register_bag_op(OpRegistry& ops);         // bag_op.cpp
void register_embedding_bag(OpRegistry& ops);  // embedding_bag.cpp
void register_lookup_op(OpRegistry& ops);      // lookup_op.cpp
void register_renorm(OpRegistry& ops);         // renorm.cpp

// All of them.
void register_embeddings(OpRegistry& ops);

}  // namespace tessera::detail
