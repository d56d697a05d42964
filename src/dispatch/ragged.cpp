#include "dispatch/ragged.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>

#include "comm/comm_event.h"
#include "dispatch/boundary_node.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using torch::autograd::variable_list;

// Rows [begin, end) of the whole.
struct Rows {
  int64_t begin;
  int64_t end;
  int64_t count() const { return end - begin; }
};

// The ranks between which the rows of one tensor dimension are divided, in the
// order of their parts: row-major over the mesh dimensions that shard it.
class Owners {
 public:
  Owners(const DeviceMesh& mesh, PlacementsRef placements, int64_t dim)
      : mesh_(mesh) {
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      if (placements[m].is_shard(dim)) {
        mesh_dims_.push_back(m);
      }
    }
  }

  const std::vector<int64_t>& mesh_dims() const { return mesh_dims_; }

  int64_t count() const {
    int64_t owners = 1;
    for (const int64_t m : mesh_dims_) {
      owners *= mesh_.size(m);
    }
    return owners;
  }

  // The coordinate of an owner on the i-th of its mesh dimensions.
  int64_t coordinate(int64_t owner, size_t i) const {
    return owner / stride(i) % mesh_.size(mesh_dims_[i]);
  }

  // The owner that differs from `owner` in that coordinate.
  int64_t moved(int64_t owner, size_t i, int64_t coordinate) const {
    return owner + (coordinate - this->coordinate(owner, i)) * stride(i);
  }

  // The owner that stands at these coordinates of the mesh.
  template <typename Coordinate>
  int64_t at(Coordinate coordinate) const {
    int64_t owner = 0;
    for (const int64_t m : mesh_dims_) {
      owner = owner * mesh_.size(m) + coordinate(m);
    }
    return owner;
  }

  // The rows of each owner where there are `n`, by torch.chunk.
  std::vector<Rows> chunks(int64_t n) const {
    std::vector<Rows> parts{{0, n}};
    for (const int64_t m : mesh_dims_) {
      std::vector<Rows> finer;
      for (const auto& part : parts) {
        for (int64_t c = 0; c < mesh_.size(m); ++c) {
          const auto range = chunk(part.count(), mesh_.size(m), c);
          const int64_t begin = part.begin + range.begin;
          finer.push_back({begin, begin + range.size});
        }
      }
      parts = std::move(finer);
    }
    return parts;
  }

 private:
  int64_t stride(size_t i) const {
    int64_t stride = 1;
    for (size_t inner = i + 1; inner < mesh_dims_.size(); ++inner) {
      stride *= mesh_.size(mesh_dims_[inner]);
    }
    return stride;
  }

  const DeviceMesh& mesh_;
  std::vector<int64_t> mesh_dims_;
};

// The coordinate on mesh dimension `m` of the index-th rank, row-major.
int64_t coordinate_of(const DeviceMesh& mesh, int64_t index, int64_t m) {
  for (int64_t inner = mesh.ndim() - 1; inner > m; --inner) {
    index /= mesh.size(inner);
  }
  return index % mesh.size(m);
}

// How many rows of a dimension each owner holds. Throws where the ranks that
// hold the same part disagree.
std::vector<int64_t> rows_of_owners(
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const Owners& owners,
    c10::ArrayRef<Sizes> shapes,
    int64_t dim) {
  std::vector<int64_t> rows(owners.count(), -1);
  std::vector<int64_t> first(owners.count(), 0);
  for (int64_t k = 0; k < static_cast<int64_t>(shapes.size()); ++k) {
    const int64_t owner =
        owners.at([&](int64_t m) { return coordinate_of(mesh, k, m); });
    if (rows[owner] < 0) {
      rows[owner] = shapes[k][dim];
      first[owner] = k;
    }
    TORCH_CHECK_VALUE(
        rows[owner] == shapes[k][dim],
        "[from_local] uneven shards may differ in size only along a dimension "
        "that is sharded, and only between ranks that hold different parts of "
        "it: two ranks hold shards of shapes ",
        SizesRef(shapes[first[owner]]),
        " and ",
        SizesRef(shapes[k]),
        ", which differ in dimension ",
        dim,
        " on ",
        to_string(placements));
  }
  return rows;
}

// One owner's rows that go to one other (or stay).
struct Parcel {
  int64_t to;  // a coordinate on the mesh dimension of the step
  Rows rows;
};

// Rows of one tensor dimension on their way to their owners, one mesh dimension
// after the other, the innermost first. As the parts are in the order of the
// ranks, what each rank holds stays sorted.
class Journey {
 public:
  Journey(Owners owners, const std::vector<int64_t>& rows)
      : owners_(std::move(owners)),
        chunks_(owners_.chunks(
            std::accumulate(rows.begin(), rows.end(), int64_t{0}))) {
    int64_t begin = 0;
    for (const int64_t count : rows) {
      held_.push_back({{begin, begin + count}});
      begin += count;
    }
  }

  const Owners& owners() const { return owners_; }

  // What each owner sends along the i-th mesh dimension, in the order of the
  // rows that it holds. These are where they belong on that dimension after.
  std::vector<std::vector<Parcel>> advance(size_t i) {
    const int64_t count = owners_.count();
    std::vector<std::vector<Parcel>> parcels(count);
    std::vector<std::vector<Rows>> next(count);
    for (int64_t owner = 0; owner < count; ++owner) {
      for (const auto& rows : held_[owner]) {
        send(i, rows, parcels[owner]);
      }
      // Owners come in the order of their rows: what arrives is sorted.
      for (const auto& [to, rows] : parcels[owner]) {
        next[owners_.moved(owner, i, to)].push_back(rows);
      }
    }
    held_ = std::move(next);
    return parcels;
  }

 private:
  // Divides rows among the chunks that they belong to.
  void send(size_t i, Rows rows, std::vector<Parcel>& parcels) const {
    auto chunk = std::upper_bound(
        chunks_.begin(), chunks_.end(), rows.begin, [](int64_t row, Rows c) {
          return row < c.end;
        });
    for (; rows.count() > 0; ++chunk) {
      const int64_t end = std::min(rows.end, chunk->end);
      if (end > rows.begin) {
        const int64_t owner = chunk - chunks_.begin();
        parcels.push_back({owners_.coordinate(owner, i), {rows.begin, end}});
        rows.begin = end;
      }
    }
  }

  Owners owners_;
  std::vector<Rows> chunks_;
  std::vector<std::vector<Rows>> held_;
};

bool all_stay(
    const Owners& owners,
    size_t i,
    const std::vector<std::vector<Parcel>>& parcels) {
  for (int64_t owner = 0; owner < owners.count(); ++owner) {
    for (const auto& parcel : parcels[owner]) {
      if (parcel.to != owners.coordinate(owner, i)) {
        return false;
      }
    }
  }
  return true;
}

int64_t rows_for(const std::vector<Parcel>& parcels, int64_t coordinate) {
  int64_t count = 0;
  for (const auto& [to, rows] : parcels) {
    count += to == coordinate ? rows.count() : 0;
  }
  return count;
}

// The places of the rows in the shard, sorted by where they go.
std::vector<int64_t> order_of(const std::vector<Parcel>& parcels) {
  const auto by_target = [](const Parcel& a, const Parcel& b) {
    return a.to < b.to;
  };
  if (std::is_sorted(parcels.begin(), parcels.end(), by_target)) {
    return {};
  }
  struct Placed {
    int64_t to;
    int64_t place;
  };
  std::vector<Placed> rows;
  for (const auto& parcel : parcels) {
    for (int64_t row = 0; row < parcel.rows.count(); ++row) {
      rows.push_back({parcel.to, static_cast<int64_t>(rows.size())});
    }
  }
  std::stable_sort(
      rows.begin(), rows.end(), [](Placed a, Placed b) { return a.to < b.to; });
  std::vector<int64_t> order;
  for (const auto& row : rows) {
    order.push_back(row.place);
  }
  return order;
}

// The step on the i-th mesh dimension, for the ranks that live here.
RowStep step_of(
    const DeviceMesh& mesh,
    int64_t dim,
    const Owners& owners,
    size_t i,
    const std::vector<std::vector<Parcel>>& parcels) {
  const int64_t m = owners.mesh_dims()[i];
  RowStep step{m, dim, {}, {}, {}};
  for (const int64_t position : mesh.local_positions()) {
    const int64_t me = owners.at(
        [&](int64_t mesh_dim) { return mesh.coordinate(position, mesh_dim); });
    Parts send;
    Parts receive;
    for (int64_t c = 0; c < mesh.size(m); ++c) {
      send.push_back(rows_for(parcels[me], c));
      receive.push_back(
          rows_for(parcels[owners.moved(me, i, c)], owners.coordinate(me, i)));
    }
    step.send.push_back(std::move(send));
    step.receive.push_back(std::move(receive));
    step.order.push_back(order_of(parcels[me]));
  }
  return step;
}

enum class Direction { There, Back };

at::Tensor permuted(
    const at::Tensor& rows,
    const std::vector<int64_t>& order,
    Direction direction) {
  if (order.empty()) {
    return rows;
  }
  const auto index =
      at::tensor(at::ArrayRef<int64_t>(order), at::kLong).to(rows.device());
  return direction == Direction::There ? rows.index_select(0, index)
                                       : rows.index_select(0, index.argsort());
}

// Below autograd.
Shards run_step(
    const DeviceMesh& mesh,
    const RowStep& step,
    const Shards& shards,
    Direction direction) {
  const bool there = direction == Direction::There;
  Shards rows;
  for (size_t i = 0; i < shards.size(); ++i) {
    auto mine = shards[i].movedim(step.dim, 0);
    rows.push_back(there ? permuted(mine, step.order[i], direction) : mine);
  }
  auto moved = collectives(mesh).all_to_all_rows(
      {mesh, step.mesh_dim},
      rows,
      there ? step.send : step.receive,
      there ? step.receive : step.send);
  for (size_t i = 0; i < moved.size(); ++i) {
    auto mine = there ? moved[i] : permuted(moved[i], step.order[i], direction);
    moved[i] = mine.movedim(0, step.dim).contiguous();
  }
  return moved;
}

struct Plan {
  DeviceMesh mesh;
  RowSteps steps;
};

std::vector<at::Tensor> carry_out(
    const std::shared_ptr<const Plan>& plan,
    at::TensorList locals,
    Direction direction);

class MoveRows final : public torch::autograd::Node {
 public:
  // `direction` is that of the gradient.
  MoveRows(std::shared_ptr<const Plan> plan, Direction direction)
      : plan_(std::move(plan)), direction_(direction) {}

  // Gradients of all shards come, or none: they are those of one tensor.
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return variable_list(grads.size());
    }
    return carry_out(plan_, grads, direction_);
  }

  std::string name() const override { return "MoveRowsBackward"; }

 private:
  std::shared_ptr<const Plan> plan_;
  Direction direction_;
};

std::vector<at::Tensor> carry_out(
    const std::shared_ptr<const Plan>& plan,
    at::TensorList locals,
    Direction direction) {
  const bool there = direction == Direction::There;
  Shards shards(locals.begin(), locals.end());
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const CommCauseGuard cause("from_local");
    const size_t count = plan->steps.size();
    for (size_t i = 0; i < count; ++i) {
      const auto& step = plan->steps[there ? i : count - 1 - i];
      shards = run_step(plan->mesh, step, shards, direction);
    }
  }
  std::vector<at::Tensor> results(shards.begin(), shards.end());
  if (records(locals)) {
    const auto back = there ? Direction::Back : Direction::There;
    record(make_node<MoveRows>(plan, back), locals, results);
  }
  return results;
}

// Calls f(dim, owners, rows of each owner) for each tensor dimension.
template <typename F>
void for_each_dim(const RaggedShapes& parts, const F& f) {
  const auto& [mesh, placements, shapes] = parts;
  for (int64_t d = 0; d < static_cast<int64_t>(shapes[0].size()); ++d) {
    const Owners owners(mesh, placements, d);
    f(d, owners, rows_of_owners(mesh, placements, owners, shapes, d));
  }
}

}  // namespace

std::vector<Sizes> gather_shapes(const DeviceMesh& mesh, ShardsRef locals) {
  const auto positions = mesh.local_positions();
  Shards tables;
  for (const auto& local : locals) {
    tables.push_back(at::tensor(local.sizes(), at::kLong).unsqueeze(0));
  }
  // The innermost first: the rows of the table come out row-major.
  int64_t known = 1;
  for (int64_t m = mesh.ndim() - 1; m >= 0; --m) {
    const std::vector<Parts> parts(
        positions.size(), Parts(mesh.size(m), known));
    tables = collectives(mesh).all_gather({mesh, m}, tables, 0, parts);
    known *= mesh.size(m);
  }
  for (const auto& table : tables) {
    TORCH_CHECK_VALUE(
        table.equal(tables[0]),
        "[from_local] the slices of ",
        mesh.str(),
        " hold shards of different shapes: in a simulated world a tensor has "
        "one shape on all of them");
  }
  const auto table = tables[0].contiguous();
  const int64_t dims = locals[0].dim();
  std::vector<Sizes> shapes;
  for (int64_t k = 0; k < known; ++k) {
    const auto* sizes = table.const_data_ptr<int64_t>() + k * dims;
    shapes.emplace_back(sizes, sizes + dims);
  }
  return shapes;
}

Sizes joined_shape(const RaggedShapes& parts) {
  Sizes joined;
  for_each_dim(parts, [&](int64_t, const Owners&, const auto& rows) {
    joined.push_back(std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  });
  return joined;
}

RowSteps plan_rows(const RaggedShapes& parts) {
  RowSteps steps;
  const auto plan_dim = [&](int64_t d, const Owners& owners, auto rows) {
    Journey journey(owners, std::move(rows));
    for (size_t i = owners.mesh_dims().size(); i-- > 0;) {
      const auto parcels = journey.advance(i);
      if (!all_stay(owners, i, parcels)) {
        steps.push_back(step_of(parts.mesh, d, owners, i, parcels));
      }
    }
  };
  for_each_dim(parts, plan_dim);
  return steps;
}

std::vector<at::Tensor> move_rows(
    const DeviceMesh& mesh, const RowSteps& steps, at::TensorList locals) {
  const auto plan = std::make_shared<const Plan>(Plan{mesh, steps});
  return carry_out(plan, locals, Direction::There);
}

}  // namespace tessera::detail
