#include "dispatch/ragged.h"

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "dispatch/row_owners.h"

namespace tessera::detail {

namespace {

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
    const RowOwners& owners,
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
  RowRange rows;
};

// Rows of one tensor dimension on their way to their owners, one mesh
// dimension after the other, the innermost first. As the parts are in the order
// of the ranks, what each rank holds stays sorted.
class Journey {
 public:
  Journey(RowOwners owners, const std::vector<int64_t>& rows)
      : owners_(std::move(owners)),
        chunks_(owners_.chunks(
            std::accumulate(rows.begin(), rows.end(), int64_t{0}))) {
    int64_t begin = 0;
    for (const int64_t count : rows) {
      held_.push_back({{begin, begin + count}});
      begin += count;
    }
  }

  const RowOwners& owners() const { return owners_; }

  // What each owner sends along the i-th mesh dimension, in the order of the
  // rows that it holds. These are where they belong on that dimension after.
  std::vector<std::vector<Parcel>> advance(size_t i) {
    const int64_t count = owners_.count();
    std::vector<std::vector<Parcel>> parcels(count);
    std::vector<std::vector<RowRange>> next(count);
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
  void send(size_t i, RowRange rows, std::vector<Parcel>& parcels) const {
    auto chunk = std::upper_bound(
        chunks_.begin(),
        chunks_.end(),
        rows.begin,
        [](int64_t row, RowRange c) { return row < c.end; });
    for (; rows.count() > 0; ++chunk) {
      const int64_t end = std::min(rows.end, chunk->end);
      if (end > rows.begin) {
        const int64_t owner = chunk - chunks_.begin();
        parcels.push_back({owners_.coordinate(owner, i), {rows.begin, end}});
        rows.begin = end;
      }
    }
  }

  RowOwners owners_;
  std::vector<RowRange> chunks_;
  std::vector<std::vector<RowRange>> held_;
};

bool all_stay(
    const RowOwners& owners,
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
  order.reserve(rows.size());
  for (const auto& row : rows) {
    order.push_back(row.place);
  }
  return order;
}

// The step on the i-th mesh dimension, for the ranks that live here.
RowStep step_of(
    const DeviceMesh& mesh,
    int64_t dim,
    const RowOwners& owners,
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

// Calls f(dim, owners, rows of each owner) for each tensor dimension.
template <typename F>
void for_each_dim(const RaggedShapes& parts, const F& f) {
  const auto& [mesh, placements, shapes] = parts;
  for (int64_t d = 0; d < static_cast<int64_t>(shapes[0].size()); ++d) {
    const RowOwners owners(mesh, placements, d);
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
  for_each_dim(parts, [&](int64_t, const RowOwners&, const auto& rows) {
    joined.push_back(std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  });
  return joined;
}

RowSteps plan_rows(const RaggedShapes& parts) {
  RowSteps steps;
  const auto plan_dim = [&](int64_t d, const RowOwners& owners, auto rows) {
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

}  // namespace tessera::detail
