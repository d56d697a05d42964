// Ops that pick and put elements by an index tensor.
#pragma once

#include "rules/rule_table.h"

namespace tessera::detail {

// Adds the rules of index_select, index_add, gather and scatter.
void add_index_rules(RuleTable& table);
// Adds those of index and index_put, which take a list of index tensors.
void add_index_tensor_rules(RuleTable& table);  // index_tensors.cpp

}  // namespace tessera::detail
