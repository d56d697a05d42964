// Elementwise ops: every result element depends on one element of each operand.
#pragma once

#include "rules/rows.h"
#include "rules/rule_table.h"
#include "tessera/rule.h"

namespace tessera::detail {

// What serves every op that ATen tags as pointwise and that has no rule of its
// own: each dimension of the broadcast result may be sharded; operands that
// lack the dimension, or have it at size 1, are replicated.
const Rule& pointwise_rule();

// The rows of that rule.
Rows pointwise_rows(const OpCall& call);

// Adds the rules of elementwise ops that leave reductions pending.
void add_linear_rules(RuleTable& table);

}  // namespace tessera::detail
