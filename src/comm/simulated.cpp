#include "comm/simulated.h"

#include <ATen/ops/_foreach_copy.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "comm/collectives.h"
#include "comm/errors.h"
#include "comm/reduce.h"
#include "comm/result.h"
#include "comm/result_memory.h"

namespace tessera::detail {

namespace {

using Positions = c10::SmallVector<int64_t, 8>;
using Pieces = c10::SmallVector<at::Tensor, 8>;

// The shards that fn(group, out) writes for each group along the dimension.
template <typename Fn>
Shards by_group(MeshDim at, ShardsRef in, Fn fn) {
  Shards out(in.size());
  const auto positions = static_cast<int64_t>(at.mesh.all_ranks().size());
  for (int64_t position = 0; position < positions; ++position) {
    if (at.mesh.coordinate(position, at.dim) != 0) continue;
    fn(at.mesh.group(position, at.dim), out);
  }
  return out;
}

Pieces pieces_of(ShardsRef in, const Positions& group) {
  Pieces pieces;
  for (const int64_t p : group) pieces.push_back(in[p]);
  return pieces;
}

// Copies each piece to its place: on a GPU in one kernel, where pieces are
// dense in memory.
void copy_pieces(const Pieces& places, const Pieces& pieces) {
  const auto plain = [](const at::Tensor& t) {
    return t.is_cuda() && t.numel() > 0 && !t.is_conj() && !t.is_neg();
  };
  if (places.size() > 1 && std::all_of(pieces.begin(), pieces.end(), plain)) {
    at::_foreach_copy_(places, pieces);
    return;
  }
  for (size_t i = 0; i < places.size(); ++i) places[i].copy_(pieces[i]);
}

class SimulatedCollectives final : public Collectives {
 protected:
  Shards do_all_reduce(MeshDim at, ShardsRef in, ReduceOp op) override {
    return by_group(at, in, [&](const Positions& group, Shards& out) {
      Pieces results;
      for (const int64_t p : group) {
        out[p] = empty_result(in[p].sizes(), in[p].options());
        results.push_back(out[p]);
      }
      reduce_into_each(results, pieces_of(in, group), op);
    });
  }

  Shards do_all_gather(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) override {
    return by_group(at, in, [&](const Positions& group, Shards& out) {
      const auto& sizes = parts[group[0]];
      auto& first = out[group[0]];
      first = empty_resized(in[group[0]], dim, total(sizes));
      concatenate(first, pieces_of(in, group), dim);
      copy_to_others(out, group);
    });
  }

  Shards do_reduce_scatter(
      MeshDim at,
      ShardsRef in,
      int64_t dim,
      PartsRef parts,
      ReduceOp op) override {
    return by_group(at, in, [&](const Positions& group, Shards& out) {
      // Reduced whole and then split: n operations, not n times n.
      const auto& first = in[group[0]];
      const at::Tensor whole = empty_result(first.sizes(), first.options());
      reduce_into(whole, pieces_of(in, group), op);
      scatter_parts(out, group, whole, dim, parts[group[0]]);
    });
  }

  Shards do_all_to_all(
      MeshDim at,
      ShardsRef in,
      const SplitDim& split,
      const SplitDim& concat) override {
    return by_group(at, in, [&](const Positions& group, Shards& out) {
      const at::Tensor whole = empty_resized(
          in[group[0]], concat.dim, total(concat.parts[group[0]]));
      concatenate(whole, pieces_of(in, group), concat.dim);
      scatter_parts(out, group, whole, split.dim, split.parts[group[0]]);
    });
  }

  Shards do_broadcast(MeshDim at, ShardsRef in) override {
    return by_group(at, in, [&](const Positions& group, Shards& out) {
      out[group[0]] = fresh_copy(in[group[0]]);
      copy_to_others(out, group);
    });
  }

  Shards do_scatter(
      MeshDim at, ShardsRef in, int64_t dim, PartsRef parts) override {
    return by_group(at, in, [&](const Positions& group, Shards& out) {
      scatter_parts(out, group, in[group[0]], dim, parts[group[0]]);
    });
  }

  Shards do_all_to_all_rows(
      MeshDim at,
      ShardsRef in,
      PartsRef send_rows,
      PartsRef recv_rows) override {
    return by_group(at, in, [&](const Positions& group, Shards& out) {
      Pieces places;
      Pieces pieces;
      // Where each sender's rows for the next receiver begin.
      Positions next(group.size(), 0);
      for (size_t c = 0; c < group.size(); ++c) {
        const auto& wanted = recv_rows[group[c]];
        auto& mine = out[group[c]];
        mine = empty_resized(in[group[c]], 0, total(wanted));
        int64_t begin = 0;
        for (size_t k = 0; k < group.size(); ++k) {
          const int64_t rows = send_rows[group[k]][c];
          TORCH_INTERNAL_ASSERT(rows == wanted[k]);
          if (rows > 0) {
            places.push_back(mine.narrow(0, begin, rows));
            pieces.push_back(in[group[k]].narrow(0, next[k], rows));
          }
          begin += rows;
          next[k] += rows;
        }
      }
      copy_pieces(places, pieces);
    });
  }

  void do_agree(
      const DeviceMesh& /*mesh*/,
      const std::string& local_error,
      ErrorKind kind) override {
    if (!local_error.empty()) throw_error(kind, local_error);
  }

 private:
  // Gives rank c of the group a copy of part c of `whole`.
  static void scatter_parts(
      Shards& out,
      const Positions& group,
      const at::Tensor& whole,
      int64_t dim,
      const Parts& parts) {
    Pieces places;
    Pieces pieces;
    int64_t start = 0;
    for (size_t c = 0; c < group.size(); ++c) {
      pieces.push_back(whole.narrow(dim, start, parts[c]));
      out[group[c]] = empty_result(pieces[c].sizes(), whole.options());
      places.push_back(out[group[c]]);
      start += parts[c];
    }
    copy_pieces(places, pieces);
  }

  // Gives every other rank of the group memory of its own with the first one's
  // result.
  static void copy_to_others(Shards& out, const Positions& group) {
    const at::Tensor& first = out[group[0]];
    Pieces places;
    for (size_t c = 1; c < group.size(); ++c) {
      out[group[c]] = empty_result(first.sizes(), first.options());
      places.push_back(out[group[c]]);
    }
    copy_pieces(places, Pieces(places.size(), first));
  }
};

}  // namespace

std::unique_ptr<Collectives> make_simulated_collectives() {
  return std::make_unique<SimulatedCollectives>();
}

}  // namespace tessera::detail
