#include "comm/simulated.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

#include "comm/counting.h"
#include "comm/errors.h"
#include "comm/reduce.h"
#include "comm/result.h"
#include "comm/result_memory.h"

namespace tessera::detail {

namespace {

using Group = c10::SmallVector<int64_t, 8>;
using Pieces = c10::SmallVector<at::Tensor, 8>;

// Calls fn(group) for each group along the dimension, once.
template <typename Fn>
void for_each_group(MeshDim at, Fn fn) {
  const auto positions = static_cast<int64_t>(at.mesh.all_ranks().size());
  for (int64_t position = 0; position < positions; ++position) {
    if (at.mesh.coordinate(position, at.dim) != 0) continue;
    fn(at.mesh.group(position, at.dim));
  }
}

void check_shards(MeshDim at, ShardsRef in) {
  TORCH_INTERNAL_ASSERT(
      in.size() == at.mesh.all_ranks().size(),
      in.size(),
      " shards for ",
      at.mesh.str());
}

void concatenate(const at::Tensor& out, const Pieces& pieces, int64_t dim) {
  at::Tensor target = out;
  at::cat_out(target, at::TensorList(pieces.data(), pieces.size()), dim);
}

class SimulatedCollectives final : public Collectives {
 public:
  Shards all_reduce(MeshDim at, ShardsRef in, ReduceOp op) override {
    const int64_t n = begin(at, in);
    if (n == 1) return copies(in);
    check_reducible(op, in[0].scalar_type(), "all_reduce");
    if (counting()) report("all_reduce", n, all_reduce_bytes(in[0], n));
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Shards out(in.size());
    for_each_group(at, [&](const Group& group) {
      Pieces terms;
      if (!in[0].is_meta()) {
        for (const int64_t p : group) terms.push_back(in[p]);
      }
      auto& first = out[group[0]];
      first = empty_result(in[group[0]].sizes(), in[group[0]].options());
      if (!terms.empty()) reduce_into(first, terms, op);
      copy_to_others(out, group);
    });
    return out;
  }

  Shards all_gather(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) override {
    const int64_t n = begin(at, in);
    check_part_counts(in, parts, n);
    if (n == 1) return copies(in);
    if (counting()) report("all_gather", n, all_gather_bytes(in[0], n));
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Shards out(in.size());
    for_each_group(at, [&](const Group& group) {
      const auto& sizes = parts[group[0]];
      auto& first = out[group[0]];
      first = empty_resized(in[group[0]], dim, total(sizes));
      Pieces pieces;
      for (size_t c = 0; c < group.size(); ++c) {
        TORCH_INTERNAL_ASSERT(in[group[c]].size(dim) == sizes[c]);
        pieces.push_back(in[group[c]]);
      }
      if (!first.is_meta()) concatenate(first, pieces, dim);
      copy_to_others(out, group);
    });
    return out;
  }

  Shards reduce_scatter(
      MeshDim at,
      ShardsRef in,
      int64_t dim,
      PartsRef parts,
      ReduceOp op) override {
    const int64_t n = begin(at, in);
    check_parts(in, dim, parts, n);
    if (n == 1) return copies(in);
    check_reducible(op, in[0].scalar_type(), "reduce_scatter");
    if (counting()) {
      report(
          "reduce_scatter", n, bytes_but(in[0], parts[0][0], in[0].size(dim)));
    }
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Shards out(in.size());
    for_each_group(at, [&](const Group& group) {
      // Reduced whole and then cut: n operations, not n times n.
      const auto& first = in[group[0]];
      const at::Tensor whole = empty_result(first.sizes(), first.options());
      if (!whole.is_meta()) {
        Pieces terms;
        for (const int64_t p : group) terms.push_back(in[p]);
        reduce_into(whole, terms, op);
      }
      hand_out(out, group, whole, dim, parts[group[0]]);
    });
    return out;
  }

  Shards all_to_all(
      MeshDim at,
      ShardsRef in,
      int64_t split_dim,
      PartsRef split_parts,
      int64_t concat_dim,
      PartsRef concat_parts) override {
    const int64_t n = begin(at, in);
    check_parts(in, split_dim, split_parts, n);
    check_part_counts(in, concat_parts, n);
    if (n == 1) return copies(in);
    if (counting()) {
      const int64_t kept = split_parts[0][0];
      report("all_to_all", n, bytes_but(in[0], kept, in[0].size(split_dim)));
    }
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Shards out(in.size());
    for_each_group(at, [&](const Group& group) {
      const auto& concat = concat_parts[group[0]];
      const at::Tensor whole =
          empty_resized(in[group[0]], concat_dim, total(concat));
      Pieces pieces;
      for (size_t c = 0; c < group.size(); ++c) {
        TORCH_INTERNAL_ASSERT(in[group[c]].size(concat_dim) == concat[c]);
        pieces.push_back(in[group[c]]);
      }
      if (!whole.is_meta()) concatenate(whole, pieces, concat_dim);
      hand_out(out, group, whole, split_dim, split_parts[group[0]]);
    });
    return out;
  }

  Shards broadcast(MeshDim at, ShardsRef in) override {
    const int64_t n = begin(at, in);
    if (n == 1) return copies(in);
    if (counting()) report("broadcast", n, all_gather_bytes(in[0], n));
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Shards out(in.size());
    for_each_group(at, [&](const Group& group) {
      out[group[0]] = fresh_copy(in[group[0]]);
      copy_to_others(out, group);
    });
    return out;
  }

  Shards scatter(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) override {
    const int64_t n = begin(at, in);
    check_parts(in, dim, parts, n);
    if (n == 1) return copies(in);
    if (counting()) {
      report("scatter", n, bytes_but(in[0], parts[0][0], in[0].size(dim)));
    }
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Shards out(in.size());
    for_each_group(at, [&](const Group& group) {
      hand_out(out, group, in[group[0]], dim, parts[group[0]]);
    });
    return out;
  }

  Shards all_to_all_rows(
      MeshDim at,
      ShardsRef in,
      PartsRef send_rows,
      PartsRef recv_rows) override {
    const int64_t n = begin(at, in);
    check_parts(in, 0, send_rows, n);
    check_part_counts(in, recv_rows, n);
    if (n == 1) return copies(in);
    if (counting()) {
      const int64_t kept = send_rows[0][0];
      report("all_to_all_rows", n, bytes_but(in[0], kept, in[0].size(0)));
    }
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Shards out(in.size());
    for_each_group(at, [&](const Group& group) {
      Pieces pieces(group.size());
      // Where each sender's rows for the next receiver begin.
      Group next(group.size(), 0);
      for (size_t c = 0; c < group.size(); ++c) {
        const auto& wanted = recv_rows[group[c]];
        auto& mine = out[group[c]];
        mine = empty_resized(in[group[c]], 0, total(wanted));
        for (size_t k = 0; k < group.size(); ++k) {
          const int64_t rows = send_rows[group[k]][c];
          TORCH_INTERNAL_ASSERT(rows == wanted[k]);
          if (!mine.is_meta()) {
            pieces[k] = in[group[k]].narrow(0, next[k], rows);
          }
          next[k] += rows;
        }
        if (!mine.is_meta()) concatenate(mine, pieces, 0);
      }
    });
    return out;
  }

  void agree(
      const DeviceMesh& mesh,
      const std::string& local_error,
      ErrorKind kind) override {
    const int64_t n = mesh.size();
    if (n > 1 && counting()) report("agree", n, (n - 1) * kAgreeBytes);
    if (!local_error.empty()) throw_error(kind, local_error);
  }

 private:
  // Checks the shards and gives the size of a group.
  static int64_t begin(MeshDim at, ShardsRef in) {
    check_shards(at, in);
    return at.mesh.size(at.dim);
  }

  static Shards copies(ShardsRef in) { return {in.begin(), in.end()}; }

  // Gives rank c of the group a copy of part c of `whole`.
  static void hand_out(
      Shards& out,
      const Group& group,
      const at::Tensor& whole,
      int64_t dim,
      const Parts& parts) {
    int64_t start = 0;
    for (size_t c = 0; c < group.size(); ++c) {
      out[group[c]] = whole.is_meta()
                          ? empty_resized(whole, dim, parts[c])
                          : fresh_copy(whole.narrow(dim, start, parts[c]));
      start += parts[c];
    }
  }

  // Gives every other rank of the group memory of its own with the first one's
  // result.
  static void copy_to_others(Shards& out, const Group& group) {
    for (size_t c = 1; c < group.size(); ++c) {
      out[group[c]] = fresh_copy(out[group[0]]);
    }
  }
};

}  // namespace

std::unique_ptr<Collectives> make_simulated_collectives() {
  return std::make_unique<SimulatedCollectives>();
}

}  // namespace tessera::detail
