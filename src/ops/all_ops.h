// The families of ops of ATen that are not served only by a rule, each in the
// file of its name.
#pragma once

#include "dispatch/op_registry.h"

namespace tessera::detail {

using RegisterOps = void(OpRegistry& ops);
RegisterOps register_attention, register_batch_norm, register_bins,
    register_causal_attention, register_composites, register_ctc_loss,
    register_factors, register_few_rows, register_few_views,
    register_fused_optimizers, register_gather, register_grad_scaler,
    register_index, register_layer_norm, register_least_squares,
    register_linear, register_list_outs, register_losses,
    register_made_in_layout, register_matrix_errors, register_nonzero,
    register_norms, register_random, register_reductions, register_sparse,
    register_sparse_arithmetic, register_storage, register_sum_gradients,
    register_views, register_weight_norm;

// All of them.
RegisterOps register_ops;

}  // namespace tessera::detail
