// Losses: elementwise functions, and their means and sums.
#pragma once

#include <vector>

#include "rules/rule_table.h"

namespace tessera::detail {

// Adds the rules of losses that are not reduced, and of the gradients of those
// that are not averaged. Means and sums are decomposed into these before they
// come here; called by rule, they need replicated operands.
void add_loss_rules(RuleTable& table);

// Where the number `total_weight` may be in the gradient of a negative log
// likelihood, which reads it only where `reduction` is a mean: a sum leaves it
// pending.
std::vector<Placement> total_weight_placements(const OpCall& call);

}  // namespace tessera::detail
