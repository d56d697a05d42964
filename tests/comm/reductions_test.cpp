// all_reduce and reduce_scatter, in both worlds.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include "tests/comm/shards.h"

namespace tessera::testing {
namespace reductions_test {

using detail::collectives;
using detail::MeshDim;

std::vector<at::Tensor> group_terms(
    const DeviceMesh& mesh,
    int64_t position,
    int64_t dim,
    const std::function<at::Tensor(int64_t)>& make) {
  std::vector<at::Tensor> terms;
  for (const int64_t p : mesh.group(position, dim)) terms.push_back(make(p));
  return terms;
}

// An average over three ranks is not exact: wide to narrow rounds once.
void expect_reduced(
    const DeviceMesh& mesh,
    const Shards& results,
    ReduceOp op,
    const std::function<at::Tensor(int64_t)>& expected) {
  if (op != ReduceOp::Avg) {
    expect_shards(mesh, results, expected);
    return;
  }
  ASSERT_EQ(results.size(), mesh.local_positions().size());
  for (size_t i = 0; i < results.size(); ++i) {
    const auto wanted = expected(mesh.local_positions()[i]);
    ASSERT_EQ(results[i].sizes(), wanted.sizes());
    ASSERT_EQ(results[i].scalar_type(), wanted.scalar_type());
    EXPECT_TRUE(at::allclose(results[i], wanted, 1e-6, 1e-7));
  }
}

TEST(AllReduce, EveryTypeAndOp) {
  const std::vector<std::vector<int64_t>> shapes{
      {}, {5}, {3, 4}, {0, 4}, {2, 3, 4}};
  for_each_mesh_dim([&](const DeviceMesh& mesh, int64_t dim) {
    for (const auto type : all_types()) {
      for (const auto op : all_ops()) {
        if (!reducible(type, op)) continue;
        SCOPED_TRACE(c10::str(type, " ", to_string(op), " over dim ", dim));
        for (const auto& shape : shapes) {
          const auto make = [&](int64_t p) { return values(p, shape, type); };
          const auto out = collectives(mesh).all_reduce(
              MeshDim{mesh, dim}, make_shards(mesh, make), op);
          expect_reduced(mesh, out, op, [&](int64_t p) {
            return plain_reduction(group_terms(mesh, p, dim, make), op);
          });
        }
      }
    }
  });
}

TEST(AllReduce, TermsAreAddedInTheOrderOfTheGroup) {
  // The same bits in both worlds, on all ranks, for all sizes: one trip, two
  // trips, and several blocks on their way at once.
  for (const int64_t numel : {1000, 100'003, 9'000'001}) {
    with_mesh({4}, [&](const DeviceMesh& mesh) {
      const auto make = [&](int64_t p) {
        const auto seed = at::arange(numel, at::kFloat);
        return (seed * (1.7F + static_cast<float>(p))).sin() *
               static_cast<float>(1 + 100 * p);
      };
      const auto in = make_shards(mesh, make);
      const auto out =
          collectives(mesh).all_reduce({mesh, 0}, in, ReduceOp::Sum);
      auto expected = make(0);
      for (int64_t p = 1; p < 4; ++p) expected.add_(make(p));
      for (const auto& shard : out) EXPECT_TRUE(at::equal(shard, expected));
    });
  }
}

TEST(AllReduce, HalfIsSummedInFloat) {
  with_mesh({4}, [](const DeviceMesh& mesh) {
    // 2048 + 1 is 2048 in half: term by term the ones would be lost.
    const auto make = [](int64_t p) {
      return at::full({40'000}, p == 0 ? 2048 : 1, at::kHalf);
    };
    const auto out = collectives(mesh).all_reduce(
        {mesh, 0}, make_shards(mesh, make), ReduceOp::Sum);
    expect_shards(mesh, out, [](int64_t) {
      return at::full({40'000}, 2051, at::kFloat).to(at::kHalf);
    });
  });
}

TEST(AllReduce, NanIsKept) {
  with_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto op : {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max}) {
      const auto out = collectives(mesh).all_reduce(
          {mesh, 0},
          make_shards(
              mesh,
              [](int64_t p) {
                return at::full({3}, p == 0 ? NAN : 1.0F, at::kFloat);
              }),
          op);
      for (const auto& shard : out)
        EXPECT_TRUE(shard.isnan().all().item<bool>());
    }
  });
}

TEST(AllReduce, ResultsHaveMemoryOfTheirOwn) {
  with_mesh({3}, [](const DeviceMesh& mesh) {
    const auto in =
        make_shards(mesh, [](int64_t) { return at::ones({4}, at::kFloat); });
    auto out = collectives(mesh).all_reduce({mesh, 0}, in, ReduceOp::Sum);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i].fill_(static_cast<double>(i) + 10);
    }
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_TRUE(at::equal(in[i], at::ones({4})));
      EXPECT_TRUE(at::equal(out[i], at::full({4}, 10.0 + double(i))));
    }
  });
}

TEST(AllReduce, OneRankGetsItsInput) {
  with_mesh({1}, [](const DeviceMesh& mesh) {
    const auto in = make_shards(mesh, [](int64_t) { return at::ones({2}); });
    const auto out = collectives(mesh).all_reduce({mesh, 0}, in, ReduceOp::Sum);
    ASSERT_EQ(out.size(), in.size());
    for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(out[i].is_same(in[i]));
  });
}

TEST(AllReduce, RecordsNothingForAutograd) {
  with_mesh({2}, [](const DeviceMesh& mesh) {
    const auto in = make_shards(
        mesh, [](int64_t) { return at::ones({2}).requires_grad_(true); });
    const auto out = collectives(mesh).all_reduce({mesh, 0}, in, ReduceOp::Sum);
    for (const auto& shard : out) EXPECT_FALSE(shard.requires_grad());
  });
}

TEST(AllReduce, RefusesWhatHasNoMeaning) {
  with_mesh({2}, [](const DeviceMesh& mesh) {
    const auto expect_refused =
        [&](at::ScalarType type, ReduceOp op, const char* text) {
          const auto in = make_shards(
              mesh, [&](int64_t p) { return values(p, {2}, type); });
          if (in.empty()) return;
          try {
            collectives(mesh).all_reduce({mesh, 0}, in, op);
            ADD_FAILURE() << "no error for " << type;
          } catch (const c10::ValueError& error) {
            EXPECT_THAT(
                error.what_without_backtrace(), ::testing::StartsWith(text));
          }
        };
    expect_refused(
        at::kInt, ReduceOp::Avg, "[all_reduce] the average of Int is no Int");
    expect_refused(
        at::kBool, ReduceOp::Avg, "[all_reduce] the average of Bool");
    expect_refused(
        at::kComplexFloat,
        ReduceOp::Max,
        "[all_reduce] ComplexFloat has no order, so it cannot be reduced by "
        "max");
  });
}

TEST(ReduceScatter, EveryTypeOpDimAndCut) {
  for_each_mesh_dim([&](const DeviceMesh& mesh, int64_t dim) {
    const int64_t n = mesh.size(dim);
    for (const auto& parts : cuts(n)) {
      struct Shape {
        std::vector<int64_t> sizes;
        int64_t cut;
      };
      const int64_t size = sum_of(parts);
      const std::vector<Shape> shapes{
          {{size}, 0}, {{size, 3}, 0}, {{3, size}, 1}, {{1, size, 2}, 1}};
      for (const auto& [shape, cut] : shapes) {
        for (const auto type : all_types()) {
          for (const auto op : all_ops()) {
            if (!reducible(type, op)) continue;
            // All types by sum, all ops on two types: enough paths, less time.
            if (op != ReduceOp::Sum && type != at::kFloat &&
                type != at::kBool) {
              continue;
            }
            SCOPED_TRACE(c10::str(type, " ", to_string(op), " cut ", cut));
            const auto make = [&](int64_t p) { return values(p, shape, type); };
            const auto out = collectives(mesh).reduce_scatter(
                MeshDim{mesh, dim},
                make_shards(mesh, make),
                cut,
                make_parts(mesh, [&](int64_t) { return parts; }),
                op);
            expect_reduced(mesh, out, op, [&, cut = cut](int64_t p) {
              return part_of(
                  plain_reduction(group_terms(mesh, p, dim, make), op),
                  cut,
                  parts,
                  mesh.coordinate(p, dim));
            });
          }
        }
      }
    }
  });
}

TEST(ReduceScatter, SeveralBlocks) {
  with_mesh({4}, [](const DeviceMesh& mesh) {
    // The third rank's part is more than two blocks of the stream; the last has
    // none.
    const Parts parts{700'001, 3, 2'500'000, 0};
    const auto make = [&](int64_t p) {
      return at::arange(sum_of(parts), at::kFloat).remainder(101).add(100 * p);
    };
    const auto out = collectives(mesh).reduce_scatter(
        {mesh, 0},
        make_shards(mesh, make),
        0,
        make_parts(mesh, [&](int64_t) { return parts; }),
        ReduceOp::Sum);
    const auto sum = make(0).add(make(1)).add(make(2)).add(make(3));
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t p = mesh.local_positions()[i];
      EXPECT_TRUE(at::equal(out[i], part_of(sum, 0, parts, p)));
    }
  });
}

}  // namespace reductions_test
}  // namespace tessera::testing
