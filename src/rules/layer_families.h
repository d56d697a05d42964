// The families of rules for layers of networks, images and matrices, each in
// the file of its name.
#pragma once

#include "rules/rule_table.h"

namespace tessera::detail {

AddRules add_attention_rules, add_bin_rules, add_convolution_rules,
    add_ctc_loss_rules, add_diagonal_rules, add_distance_rules,
    add_fourier_rules, add_group_norm_rules, add_linalg_rules,
    add_margin_loss_rules, add_sampling_rules, add_segment_rules,
    add_spatial_rules;

}  // namespace tessera::detail
