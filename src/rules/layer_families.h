// The families of rules for layers of networks, images and matrices, each in
// the file of its name.
#pragma once

#include "rules/rule_table.h"

namespace tessera::detail {

void add_attention_rules(RuleTable& table);
void add_bin_rules(RuleTable& table);
void add_convolution_rules(RuleTable& table);
void add_diagonal_rules(RuleTable& table);
void add_distance_rules(RuleTable& table);
void add_fourier_rules(RuleTable& table);
void add_group_norm_rules(RuleTable& table);
void add_linalg_rules(RuleTable& table);
void add_margin_loss_rules(RuleTable& table);
void add_sampling_rules(RuleTable& table);
void add_segment_rules(RuleTable& table);
void add_spatial_rules(RuleTable& table);

}  // namespace tessera::detail
