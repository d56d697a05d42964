#include "ops/all_ops.h"

namespace tessera::detail {

void register_ops(OpRegistry& ops) {
  register_attention(ops);
  register_batch_norm(ops);
  register_bins(ops);
  register_causal_attention(ops);
  register_composites(ops);
  register_ctc_loss(ops);
  register_factors(ops);
  register_few_rows(ops);
  register_few_views(ops);
  register_fused_optimizers(ops);
  register_gather(ops);
  register_grad_scaler(ops);
  register_index(ops);
  register_layer_norm(ops);
  register_least_squares(ops);
  register_linear(ops);
  register_list_outs(ops);
  register_losses(ops);
  register_made_in_layout(ops);
  register_matrix_errors(ops);
  register_nonzero(ops);
  register_norms(ops);
  register_random(ops);
  register_reductions(ops);
  register_sparse(ops);
  register_sparse_arithmetic(ops);
  register_storage(ops);
  register_sum_gradients(ops);
  register_views(ops);
  register_weight_norm(ops);
}

}  // namespace tessera::detail
