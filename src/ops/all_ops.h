// The families of ops of ATen that are not served only by a rule, each in the
// file of its name.
#pragma once

#include "dispatch/op_registry.h"

namespace tessera::detail {

void register_batch_norm(OpRegistry& ops);
void register_bins(OpRegistry& ops);
void register_composites(OpRegistry& ops);
void register_factors(OpRegistry& ops);
void register_fused_optimizers(OpRegistry& ops);
void register_grad_scaler(OpRegistry& ops);
void register_index(OpRegistry& ops);
void register_losses(OpRegistry& ops);
void register_moments(OpRegistry& ops);
void register_nonzero(OpRegistry& ops);
void register_norms(OpRegistry& ops);
void register_random_composed(OpRegistry& ops);
void register_random_fills(OpRegistry& ops);
void register_sparse(OpRegistry& ops);
void register_sparse_arithmetic(OpRegistry& ops);
void register_sum_gradients(OpRegistry& ops);
void register_views(OpRegistry& ops);
void register_weight_norm(OpRegistry& ops);

// All of them.
void register_ops(OpRegistry& ops);

}  // namespace tessera::detail
