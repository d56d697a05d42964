// The collectives that move bytes, in both worlds.
#include "tests/comm/shards.h"

namespace tessera::testing {
namespace moves_test {

using detail::collectives;
using detail::MeshDim;

// What a group holds together; groups differ.
at::Tensor group_value(
    const DeviceMesh& mesh,
    int64_t position,
    int64_t dim,
    at::IntArrayRef sizes,
    at::ScalarType type) {
  return values(100 + mesh.group(position, dim)[0], sizes, type);
}

// Shapes with `size` along the dimension given beside them.
struct Shape {
  std::vector<int64_t> sizes;
  int64_t dim;
};

std::vector<Shape> shapes_with(int64_t size) {
  return {
      {{size}, 0},
      {{size, 3}, 0},
      {{3, size}, 1},
      {{2, size, 3}, 1},
      {{1, size, 2}, 1},
      {{0, size}, 1}};
}

TEST(AllGather, EveryTypeDimAndCut) {
  for_each_mesh_dim([](const DeviceMesh& mesh, int64_t dim) {
    for (const auto& parts : cuts(mesh.size(dim))) {
      for (const auto& shape : shapes_with(sum_of(parts))) {
        for (const auto type : all_types()) {
          SCOPED_TRACE(c10::str(type, " over dim ", dim));
          const auto full = [&](int64_t p) {
            return group_value(mesh, p, dim, shape.sizes, type);
          };
          const auto out = collectives(mesh).all_gather(
              MeshDim{mesh, dim},
              make_shards(
                  mesh,
                  [&](int64_t p) {
                    return part_of(
                        full(p), shape.dim, parts, mesh.coordinate(p, dim));
                  }),
              shape.dim,
              make_parts(mesh, [&](int64_t) { return parts; }));
          expect_shards(mesh, out, full);
        }
      }
    }
  });
}

TEST(AllToAll, EveryTypeDimAndCut) {
  for_each_mesh_dim([](const DeviceMesh& mesh, int64_t dim) {
    const int64_t n = mesh.size(dim);
    for (const auto& from : cuts(n)) {
      for (const auto& to : cuts(n)) {
        const int64_t a = sum_of(from);
        const int64_t b = sum_of(to);
        struct Case {
          std::vector<int64_t> sizes;
          int64_t concat_dim;
          int64_t split_dim;
        };
        const std::vector<Case> cases{
            {{a, b}, 0, 1},
            {{b, a}, 1, 0},
            {{2, a, b}, 1, 2},
            {{b, 2, a}, 2, 0}};
        for (const auto& [sizes, concat_dim, split_dim] : cases) {
          for (const auto type : {at::kBool, at::kHalf, at::kComplexFloat}) {
            SCOPED_TRACE(c10::str(type, " ", at::IntArrayRef(sizes)));
            const auto full = [&](int64_t p) {
              return group_value(mesh, p, dim, sizes, type);
            };
            const auto out = collectives(mesh).all_to_all(
                MeshDim{mesh, dim},
                make_shards(
                    mesh,
                    [&](int64_t p) {
                      return part_of(
                          full(p), concat_dim, from, mesh.coordinate(p, dim));
                    }),
                {split_dim, make_parts(mesh, [&](int64_t) { return to; })},
                {concat_dim, make_parts(mesh, [&](int64_t) { return from; })});
            expect_shards(mesh, out, [&](int64_t p) {
              return part_of(full(p), split_dim, to, mesh.coordinate(p, dim));
            });
          }
        }
      }
    }
  });
}

TEST(Broadcast, EveryTypeAndShape) {
  const std::vector<std::vector<int64_t>> shapes{
      {}, {5}, {3, 4}, {0, 2}, {2, 3, 4}};
  for_each_mesh_dim([&](const DeviceMesh& mesh, int64_t dim) {
    for (const auto type : all_types()) {
      for (const auto& shape : shapes) {
        SCOPED_TRACE(c10::str(type, " ", at::IntArrayRef(shape)));
        const auto make = [&](int64_t p) { return values(p, shape, type); };
        const auto out = collectives(mesh).broadcast(
            MeshDim{mesh, dim}, make_shards(mesh, make));
        expect_shards(
            mesh, out, [&](int64_t p) { return make(mesh.group(p, dim)[0]); });
      }
    }
  });
}

TEST(Scatter, EveryTypeDimAndCut) {
  for_each_mesh_dim([](const DeviceMesh& mesh, int64_t dim) {
    for (const auto& parts : cuts(mesh.size(dim))) {
      for (const auto& shape : shapes_with(sum_of(parts))) {
        for (const auto type : all_types()) {
          SCOPED_TRACE(c10::str(type, " ", at::IntArrayRef(shape.sizes)));
          const auto make = [&](int64_t p) {
            return values(p, shape.sizes, type);
          };
          const auto out = collectives(mesh).scatter(
              MeshDim{mesh, dim},
              make_shards(mesh, make),
              shape.dim,
              make_parts(mesh, [&](int64_t) { return parts; }));
          expect_shards(mesh, out, [&](int64_t p) {
            return part_of(
                make(mesh.group(p, dim)[0]),
                shape.dim,
                parts,
                mesh.coordinate(p, dim));
          });
        }
      }
    }
  });
}

TEST(AllToAllRows, EveryPairHasItsOwnCount) {
  for_each_mesh_dim([](const DeviceMesh& mesh, int64_t dim) {
    const int64_t n = mesh.size(dim);
    // From coordinate a to coordinate b; some pairs exchange nothing, and the
    // group's own first position makes groups differ.
    const auto rows = [&](int64_t position, int64_t a, int64_t b) {
      return (a * 3 + b * 2 + mesh.group(position, dim)[0]) % 4;
    };
    const auto sent = [&](int64_t p) {
      Parts parts;
      for (int64_t c = 0; c < n; ++c) {
        parts.push_back(rows(p, mesh.coordinate(p, dim), c));
      }
      return parts;
    };
    const auto received = [&](int64_t p) {
      Parts parts;
      for (int64_t c = 0; c < n; ++c) {
        parts.push_back(rows(p, c, mesh.coordinate(p, dim)));
      }
      return parts;
    };
    for (const auto& tail :
         std::vector<std::vector<int64_t>>{{}, {3}, {2, 2}}) {
      for (const auto type : all_types()) {
        SCOPED_TRACE(c10::str(type, " tail ", at::IntArrayRef(tail)));
        const auto make = [&](int64_t p) {
          std::vector<int64_t> sizes{sum_of(sent(p))};
          sizes.insert(sizes.end(), tail.begin(), tail.end());
          return values(p, sizes, type);
        };
        const auto out = collectives(mesh).all_to_all_rows(
            MeshDim{mesh, dim},
            make_shards(mesh, make),
            make_parts(mesh, sent),
            make_parts(mesh, received));
        expect_shards(mesh, out, [&](int64_t p) {
          std::vector<at::Tensor> pieces;
          for (const int64_t q : mesh.group(p, dim)) {
            pieces.push_back(
                part_of(make(q), 0, sent(q), mesh.coordinate(p, dim)));
          }
          return at::cat(pieces);
        });
      }
    }
  });
}

TEST(Moves, ResultsAreContiguousAndDoNotAlias) {
  with_mesh({2}, [](const DeviceMesh& mesh) {
    const auto in = make_shards(
        mesh, [](int64_t p) { return values(p, {4, 4}, at::kFloat); });
    const Parts half{2, 2};
    const Parts each{4, 4};
    const auto halves = make_parts(mesh, [&](int64_t) { return half; });
    const auto whole = make_parts(mesh, [&](int64_t) { return each; });
    auto& c = collectives(mesh);
    for (const auto& out :
         {c.all_gather({mesh, 0}, in, 1, whole),
          c.all_to_all({mesh, 0}, in, {0, halves}, {1, whole}),
          c.broadcast({mesh, 0}, in),
          c.scatter({mesh, 0}, in, 0, halves),
          c.all_to_all_rows({mesh, 0}, in, halves, halves)}) {
      for (const auto& shard : out) {
        EXPECT_TRUE(shard.is_contiguous());
        for (const auto& given : in) EXPECT_FALSE(shard.is_alias_of(given));
        for (const auto& other : out) {
          EXPECT_EQ(shard.is_alias_of(other), shard.is_same(other));
        }
      }
    }
  });
}

TEST(Meshes, RanksOutsideTakeNoPart) {
  // Three of four ranks, in another order than the world's.
  const auto body = [] {
    const DeviceMesh mesh("cpu", {3, 0, 2});
    const auto out = collectives(mesh).all_gather(
        {mesh, 0},
        make_shards(
            mesh,
            [&](int64_t p) {
              return at::full({1}, mesh.all_ranks()[p], at::kLong);
            }),
        0,
        make_parts(mesh, [](int64_t) { return Parts{1, 1, 1}; }));
    expect_shards(
        mesh, out, [](int64_t) { return at::tensor({3, 0, 2}, at::kLong); });
    collectives(mesh).agree(mesh, "");
  };
  if (over_processes()) {
    if (test_world().size() >= 4) body();
  } else {
    const World world = World::simulate(4);
    body();
  }
}

TEST(Meshes, SlicesHaveTheirOwnGroups) {
  const auto body = [] {
    const DeviceMesh mesh("cpu", {0, 1, 2, 3}, {2, 2}, {"dp", "tp"});
    const auto tp = mesh["tp"];
    const auto out = collectives(tp).all_reduce(
        {tp, 0},
        make_shards(
            tp,
            [&](int64_t p) {
              return at::full({2}, 1 << tp.all_ranks()[p], at::kLong);
            }),
        ReduceOp::Sum);
    expect_shards(tp, out, [&](int64_t p) {
      return at::full({2}, tp.all_ranks()[p] < 2 ? 3 : 12, at::kLong);
    });
  };
  if (over_processes()) {
    if (test_world().size() >= 4) body();
  } else {
    const World world = World::simulate(4);
    body();
  }
}

TEST(Meta, OnlyShapesMove) {
  with_mesh({3}, [](const DeviceMesh& mesh) {
    const auto meta = at::TensorOptions(at::kMeta).dtype(at::kHalf);
    const auto make = [&](int64_t) { return at::empty({4, 6}, meta); };
    const Parts four{2, 2, 0};
    const Parts each{4, 4, 4};
    const auto cut = make_parts(mesh, [&](int64_t) { return four; });
    const auto whole = make_parts(mesh, [&](int64_t) { return each; });
    const auto in = make_shards(mesh, make);
    auto& c = collectives(mesh);
    const auto expect = [&](const Shards& out, auto sizes) {
      for (size_t i = 0; i < out.size(); ++i) {
        EXPECT_TRUE(out[i].is_meta());
        EXPECT_EQ(out[i].scalar_type(), at::kHalf);
        const int64_t kept = four[mesh.local_positions()[i]];
        EXPECT_EQ(out[i].sizes(), at::IntArrayRef(sizes(kept)));
      }
    };
    using S = std::vector<int64_t>;
    expect(c.all_reduce({mesh, 0}, in, ReduceOp::Sum), [](int64_t) {
      return S{4, 6};
    });
    expect(c.all_gather({mesh, 0}, in, 0, whole), [](int64_t) {
      return S{12, 6};
    });
    expect(
        c.reduce_scatter({mesh, 0}, in, 0, cut, ReduceOp::Sum),
        [](int64_t kept) { return S{kept, 6}; });
    expect(c.scatter({mesh, 0}, in, 0, cut), [](int64_t kept) {
      return S{kept, 6};
    });
    expect(c.broadcast({mesh, 0}, in), [](int64_t) { return S{4, 6}; });
    const Parts six{6, 6, 6};
    const auto columns = make_parts(mesh, [&](int64_t) { return six; });
    expect(
        c.all_to_all({mesh, 0}, in, {0, cut}, {1, columns}),
        [](int64_t kept) { return S{kept, 18}; });
  });
}

}  // namespace moves_test
}  // namespace tessera::testing
