// aten::embedding_renorm_, and the max_norm of lookups, whatever the layout of
// table and indices.
#include "embedding/renorm.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "comm/comm_event.h"
#include "dispatch/implicit_moves.h"
#include "dispatch/plain_args.h"
#include "dispatch/run_by_rule.h"
#include "dispatch/run_steps.h"
#include "embedding/embedding.h"
#include "kernels/lookup/renorm.h"
#include "kernels/lookup/route.h"
#include "tessera/embedding.h"
#include "tessera/language.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

const OpInfo& renorm_op() {
  static const OpInfo& op = aten_op("embedding_renorm_");
  return op;
}

void check_allowed(const at::Tensor& self) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      EmbeddingScope::current().max_norm,
      "Operator aten.embedding_renorm_.default does not have a sharding "
      "strategy registered. A table with max_norm is written by its lookups: ",
      spell("hold an EmbeddingScope with max_norm = true to allow it"));
  begin_write(self, "aten.embedding_renorm_.default");
  for (const auto& placement : distributed_meta(self).spec->placements) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !placement.is_partial(),
        "[embedding_renorm_] the norms of a table that is a pending reduction "
        "are not known: redistribute it first");
  }
}

// The indices of the whole, on every rank.
Shards all_indices(const Spec& table, const at::Tensor& indices) {
  if (!is_dtensor(indices)) {
    return replicated_shards(table.mesh, indices);
  }
  const Spec& batch = *distributed_meta(indices).spec;
  const Placements whole(table.mesh.ndim(), Replicate());
  check_implicit_move(
      renorm_op().display_name, "argument 'indices'", batch, whole);
  return run_steps(
      batch,
      *cached_redistribution(batch, whole),
      current_shards(indices),
      Slices::Alias);
}

// The part that some columns have in the norms of rows: what is added up (or,
// for the largest entry, maximised) over all columns.
at::Tensor norm_parts(const at::Tensor& rows, double norm_type) {
  if (std::isinf(norm_type)) {
    return rows.size(1) == 0 ? rows.new_zeros({rows.size(0)})
                             : rows.abs().amax(1);
  }
  if (norm_type == 0) {
    return rows.ne(0).sum(1).to(rows.scalar_type());
  }
  return rows.abs().pow(norm_type).sum(1);
}

at::Tensor norms_of(const at::Tensor& parts, double norm_type) {
  return std::isinf(norm_type) || norm_type == 0 ? parts
                                                 : parts.pow(1 / norm_type);
}

bool shards_columns(const Spec& table) {
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    if (table.placements[m].is_shard(1) && table.mesh.size(m) > 1) {
      return true;
    }
  }
  return false;
}

// Where mesh dimensions shard the columns, a row's norm is known to all of its
// ranks together.
void renorm_columns(
    const Spec& table,
    ShardsRef shards,
    ShardsRef held,
    const NormLimit& limit) {
  const auto [max_norm, norm_type] = limit;
  const auto dtype = accumulate_dtype(table.dtype);
  Shards rows;
  Shards norms;
  for (size_t i = 0; i < shards.size(); ++i) {
    rows.push_back(shards[i].index_select(0, held[i]));
    norms.push_back(norm_parts(rows[i].to(dtype), norm_type));
  }
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    if (table.placements[m].is_shard(1)) {
      norms = collectives(table.mesh)
                  .all_reduce(
                      {table.mesh, m},
                      norms,
                      std::isinf(norm_type) ? ReduceOp::Max : ReduceOp::Sum);
    }
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    // In double and with a guard against a division by zero, as ATen does: a
    // bit of difference may decide which of two rows is a maximum.
    const auto norm = norms_of(norms[i], norm_type).to(at::kDouble);
    // A row whose norm is not a number stays as it is.
    const auto scale = norm.add(1e-7).reciprocal().mul(max_norm).masked_fill(
        norm.gt(max_norm).logical_not(), 1);
    const auto scaled = rows[i].to(dtype).mul(scale.to(dtype).unsqueeze(1));
    shards[i].index_copy_(0, held[i], scaled.to(table.dtype));
  }
}

void renorm_table(
    const Spec& table,
    ShardsRef shards,
    ShardsRef rows,
    const NormLimit& limit) {
  const CommCauseGuard cause(renorm_op().name);
  const bool by_columns = shards_columns(table);
  Shards held;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto range = local_range(
        table.sizes[0],
        0,
        table.mesh,
        table.placements,
        table.mesh.local_positions()[i]);
    if (by_columns) {
      const auto wanted = route_rows(rows[i], {0, table.sizes[0]}).wanted;
      held.push_back(held_rows(wanted, range.begin, range.size));
    } else {
      renorm_rows_(
          shards[i], {rows[i], range.begin, range.size, table.sizes[0]}, limit);
    }
  }
  if (by_columns) {
    renorm_columns(table, shards, held, limit);
  }
}

at::Tensor& embedding_renorm_(
    at::Tensor& self,
    const at::Tensor& indices,
    double max_norm,
    double norm_type) {
  if (!is_dtensor(self) || !is_dtensor(indices)) {
    const torch::jit::Stack args{self, indices, max_norm, norm_type};
    admit_plain_tensors(renorm_op(), args);
  }
  TORCH_CHECK(
      self.dim() == 2,
      "[embedding_renorm_] expected a table of two dimensions, but got one of "
      "shape ",
      self.sizes());
  check_allowed(self);
  const Spec& table = *distributed_meta(self).spec;
  const Shards& shards = current_shards(self);
  if (shards_columns(table) && !self.is_meta()) {
    check_implicit_exchange(
        renorm_op().display_name,
        {"add up the norms of rows of 'self' over the ranks that share their "
         "columns, by all_reduce",
         indices.numel() * static_cast<int64_t>(
                               c10::elementSize(accumulate_dtype(table.dtype))),
         "Call redistribute(...) on the table first"});
  }
  if (!self.is_meta()) {
    const CommCauseGuard cause(renorm_op().name);
    renorm_table(
        table, shards, all_indices(table, indices), {max_norm, norm_type});
  }
  end_write(self, renorm_op().name);
  return self;
}

}  // namespace

void renorm_looked_up_(
    const at::Tensor& weight, ShardsRef rows, const LookupQuery& query) {
  begin_write(weight, query.caller->name);
  renorm_table(
      *distributed_meta(weight).spec,
      current_shards(weight),
      rows,
      {*query.max_norm, query.norm_type});
  end_write(weight, query.caller->name);
  weight.unsafeGetTensorImpl()->bump_version();
}

void register_renorm(OpRegistry& ops) {
  ops.own_kernel("embedding_renorm_", &embedding_renorm_);
}

}  // namespace tessera::detail
