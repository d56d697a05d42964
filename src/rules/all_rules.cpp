// Every family of built-in rules.
#include "rules/layer_families.h"
#include "rules/rule_table.h"

namespace tessera::detail {

void add_all_rules(RuleTable& table) {
  add_pointwise_rules(table);
  add_matrix_rules(table);
  add_reduction_rules(table);
  add_view_rules(table);
  add_copy_rules(table);
  add_join_rules(table);
  add_nn_rules(table);
  add_embedding_rules(table);
  add_bag_rules(table);
  add_attention_rules(table);
  add_bin_rules(table);
  add_convolution_rules(table);
  add_ctc_loss_rules(table);
  add_diagonal_rules(table);
  add_distance_rules(table);
  add_fourier_rules(table);
  add_group_norm_rules(table);
  add_linalg_rules(table);
  add_margin_loss_rules(table);
  add_sampling_rules(table);
  add_segment_rules(table);
  add_spatial_rules(table);
}

}  // namespace tessera::detail
