// The families of rules for layers of networks and for batches of transforms,
// each in the file of its name.
#pragma once

#include "rules/rule_table.h"

namespace tessera::detail {

void add_attention_rules(RuleTable& table);
void add_batched_rules(RuleTable& table);
void add_convolution_rules(RuleTable& table);
void add_group_norm_rules(RuleTable& table);
void add_spatial_rules(RuleTable& table);

}  // namespace tessera::detail
