#include "dispatch/write_into_base.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "comm/comm_event.h"
#include "dispatch/autograd.h"
#include "dispatch/implicit_moves.h"
#include "dispatch/owned_elements.h"

namespace tessera::detail {

namespace {

int64_t overlap(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  const int64_t end = std::min(a.begin + a.size, b.begin + b.size);
  return std::max<int64_t>(end - begin, 0);
}

// How many mesh dimensions shard `dim`.
int64_t sharded_times(PlacementsRef placements, int64_t dim) {
  return std::count_if(
      placements.begin(), placements.end(), [&](const Placement& p) {
        return p.is_shard(dim);
      });
}

// What the rank at `position` writes of a value into a pending reduction: all
// of it on the first rank, on the others what changes nothing. `values`: how
// the value is laid out.
at::Tensor term_of(
    const Spec& base,
    PlacementsRef values,
    int64_t position,
    const at::Tensor& value) {
  for (int64_t m = 0; m < base.mesh.ndim(); ++m) {
    const auto& placement = base.placements[m];
    if (!placement.is_partial() || values[m].is_partial() ||
        base.mesh.coordinate(position, m) == 0) {
      continue;
    }
    if (placement.reduce_op() == ReduceOp::Sum) {
      return at::zeros_like(value);
    }
    if (placement.reduce_op() == ReduceOp::Product) {
      return at::ones_like(value);
    }
  }
  return value;
}

// Values on their way to the owners of boxes, one mesh dimension after the
// other.
class Delivery {
 public:
  Delivery(
      const OwnedElements& owned,
      const Spec& base,
      const at::Tensor& values,
      std::string_view cause)
      : owned_(owned), base_(base), cause_(cause) {
    given_ = distributed_meta(values).spec->placements;
    auto start = given_;
    for (int64_t m = 0; m < base_.mesh.ndim(); ++m) {
      start[m] = start_on(m);
    }
    const auto moved = redistribute(values, start, cause);
    shards_ = current_shards(moved);
    const Spec& spec = *distributed_meta(moved).spec;
    placements_ = spec.placements;
    for (int64_t m = 0; m < base_.mesh.ndim(); ++m) {
      if (spec.placements[m].is_shard()) {
        deliver(spec, m);
      }
    }
  }

  // How the values were laid out when they went to the owners.
  PlacementsRef placements() const { return placements_; }

  // Those that shard `k` of the base gets.
  at::Tensor part(size_t k) const {
    Sizes origin(owned_.view().sizes.size(), 0);
    for (size_t i = k; i < starts_.size(); i += shards_.size()) {
      origin[starts_[i].dim] = starts_[i].begin;
    }
    return owned_.part_of(shards_[k], k, origin);
  }

 private:
  // The dimension of the view along which mesh dimension `m` splits the base;
  // nothing if one rank has all of the view.
  std::optional<int64_t> driver_on(int64_t m) const {
    const auto& placement = base_.placements[m];
    return placement.is_shard() ? driving_dim(owned_.indices()[placement.dim()])
                                : std::nullopt;
  }

  // The layout on mesh dimension `m` from which the values go to the owners:
  // sharded only where no other mesh dimension has to do with the same
  // dimensions of the view.
  Placement start_on(int64_t m) const {
    const Placement& now = given_[m];
    if (now.is_partial()) {
      return now == base_.placements[m] ? now : Placement(Replicate());
    }
    if (!now.is_shard() || !base_.placements[m].is_shard() ||
        sharded_times(given_, now.dim()) != 1) {
      return Replicate();
    }
    const auto driver = driver_on(m);
    for (int64_t other = 0; other < base_.mesh.ndim(); ++other) {
      const auto others = driver_on(other);
      if (other != m &&
          ((driver.has_value() &&
            (others == driver || given_[other].is_shard(*driver))) ||
           others == now.dim())) {
        return Replicate();
      }
    }
    return now;
  }

  // The part of dimension `dim` of the view that the owner at `position` has,
  // as far as mesh dimension `m` tells.
  Range owned_on(int64_t m, int64_t dim, int64_t position) const {
    const int64_t d = base_.placements[m].dim();
    const auto& index = owned_.indices()[d];
    const int64_t size = owned_.view().sizes[dim];
    const auto held = [&](int64_t at) {
      return local_range(base_.sizes[d], d, base_.mesh, base_.placements, at);
    };
    if (driver_on(m).has_value()) {
      return owned_range(index.first, index.steps[dim], size, held(position));
    }
    // One rank has all; other mesh dimensions bring the values to it.
    int64_t owner = 0;
    while (index.first < held(owner).begin ||
           index.first >= held(owner).begin + held(owner).size) {
      ++owner;
    }
    const bool is_owner =
        base_.mesh.coordinate(position, m) == base_.mesh.coordinate(owner, m);
    return {0, is_owner ? size : 0};
  }

  void deliver(const Spec& values, int64_t m) {
    const int64_t from = values.placements[m].dim();
    const int64_t to = driver_on(m).value_or(from);
    const auto held = [&](int64_t position) {
      return local_range(
          values.sizes[from], from, base_.mesh, values.placements, position);
    };
    // By local position and group coordinate: how much of dimension `to` goes
    // to a rank, and how much of `from` comes from it.
    std::vector<Parts> sent;
    std::vector<Parts> received;
    for (const int64_t position : base_.mesh.local_positions()) {
      const Range owned = owned_on(m, to, position);
      auto& out = sent.emplace_back();
      auto& in = received.emplace_back();
      for (const int64_t peer : base_.mesh.group(position, m)) {
        const Range theirs = owned_on(m, to, peer);
        out.push_back(
            from == to ? overlap(held(position), theirs) : theirs.size);
        in.push_back(from == to ? overlap(held(peer), owned) : held(peer).size);
      }
      starts_.push_back({to, owned.begin});
    }
    check_implicit_exchange(
        cause_,
        {"send the values of a write into a view to the ranks that hold its "
         "elements",
         shards_.empty() ? 0 : static_cast<int64_t>(shards_[0].nbytes()),
         "Call redistribute(...) on the values first, such that every rank has "
         "them"});
    const MeshDim at{base_.mesh, m};
    auto& comm = collectives(base_.mesh);
    if (from != to) {
      shards_ = comm.all_to_all(at, shards_, {to, sent}, {from, received});
      return;
    }
    Shards rows;
    for (const auto& shard : shards_) {
      rows.push_back(shard.movedim(from, 0));
    }
    shards_ = comm.all_to_all_rows(at, rows, sent, received);
    for (auto& shard : shards_) {
      shard = shard.movedim(0, from);
    }
  }

  // Where a local shard of the values begins in a dimension of the view.
  struct Start {
    int64_t dim;
    int64_t begin;
  };

  const OwnedElements& owned_;
  const Spec& base_;
  const std::string_view cause_;
  Placements given_;
  Placements placements_;
  Shards shards_;
  std::vector<Start> starts_;  // for each delivery, by local shard
};

// Every rank sees all values and takes those of its own elements.
void write_one_by_one(
    const OwnedElements& owned,
    const Spec& base,
    const at::Tensor& values,
    std::string_view cause) {
  auto placements = distributed_meta(values).spec->placements;
  for (size_t m = 0; m < placements.size(); ++m) {
    if (!placements[m].is_partial() || placements[m] != base.placements[m]) {
      placements[m] = Replicate();
    }
  }
  const auto everywhere = redistribute(values, placements, cause);
  const auto& shards = current_shards(everywhere);
  for (size_t k = 0; k < shards.size(); ++k) {
    const auto part = owned.part_of(shards[k], k).to(base.shard_dtype);
    owned.put(
        k, term_of(base, placements, base.mesh.local_positions()[k], part));
  }
}

void check_writable(const Spec& base, std::string_view cause) {
  for (const auto& placement : base.placements) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        placement.kind() != Placement::Kind::MaskPartial,
        "[",
        cause,
        "] writes into a view of a pending lookup, ",
        to_string(base.placements),
        ": redistribute the tensor first");
  }
}

}  // namespace

void write_into_base(
    const DistributedMeta& base,
    const ViewGeometry& view,
    const at::Tensor& values,
    std::string_view cause) {
  if (view.numel() == 0) {
    return;
  }
  const Spec& spec = *base.spec;
  check_writable(spec, cause);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const CommCauseGuard guard(cause, distributed_meta(values).spec);
  if (&distributed_meta(values).memory() == &base.memory()) {
    return write_into_base(base, view, values.clone(), cause);
  }
  const ViewGeometry whole{spec.sizes, spec.strides, 0};
  if (view != whole && view.is_row_major() && whole.is_row_major() &&
      view.offset == 0 && view.numel() == whole.numel()) {
    return write_into_base(
        base, whole, values.reshape(SizesRef(spec.sizes)), cause);
  }
  const auto owned = OwnedElements::of(base, view);
  TORCH_CHECK_NOT_IMPLEMENTED(
      owned.has_value(),
      "[",
      cause,
      "] writes into a view of a tensor of which several elements are one in "
      "memory (strides ",
      SizesRef(spec.strides),
      "): clone() it first");
  if (!owned->are_boxes()) {
    return write_one_by_one(*owned, spec, values, cause);
  }
  const Delivery delivery(*owned, spec, values, cause);
  for (size_t k = 0; k < spec.mesh.local_positions().size(); ++k) {
    owned->elements(k).copy_(term_of(
        spec,
        delivery.placements(),
        spec.mesh.local_positions()[k],
        delivery.part(k)));
  }
}

}  // namespace tessera::detail
