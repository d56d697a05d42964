// Ops that pick and put elements by an index tensor.
#pragma once

#include "rules/rule_table.h"

namespace tessera::detail {

// Adds the rules of index_select, index_add, gather and scatter.
void add_index_rules(RuleTable& table);

}  // namespace tessera::detail
