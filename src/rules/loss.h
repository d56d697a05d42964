// Losses: elementwise functions, and their means and sums.
#pragma once

#include "rules/rule_table.h"

namespace tessera::detail {

// Adds the rules of losses that are not reduced, and of the gradients of those
// that are not averaged. Means and sums are decomposed into these before they
// come here; called by rule, they need replicated operands.
void add_loss_rules(RuleTable& table);

}  // namespace tessera::detail
