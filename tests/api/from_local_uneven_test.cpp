// from_local of shards of any size: the last batch of an epoch.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace from_local_uneven_test {

using ts::testing::for_each_mesh;
using ts::testing::outside;
using ts::testing::throws_saying;

// How many rows the owners of a dimension hold, one after the other.
using Pattern = std::vector<int64_t>;

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> all{
      {4, 4, 4, 3, 4, 4, 4, 2},  // the last rank has fewer
      {5, 4, 4, 4, 4, 4, 4, 4},  // the first has one more
      {1, 0, 6, 2, 0, 0, 3, 1},  // anything
      {0, 0, 0, 3, 0, 0, 0, 0},  // all rows on one rank
      {0, 0, 1, 0, 0, 1, 0, 0},  // more ranks than rows
      {0, 0, 0, 0, 0, 0, 0, 0},  // no row at all
      {3, 3, 3, 3, 3, 3, 3, 3},  // even
      {17, 16, 16, 16, 16, 16, 16, 16},
  };
  return all;
}

struct Slice {
  int64_t begin;
  int64_t size;
};

// The part of dimension `dim` that the owner at `position` brings.
Slice slice_of(
    const ts::DeviceMesh& mesh,
    ts::PlacementsRef placements,
    int64_t dim,
    int64_t position,
    const Pattern& pattern) {
  int64_t owner = 0;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (placements[m].is_shard(dim)) {
      owner = owner * mesh.size(m) + mesh.coordinate(position, m);
    }
  }
  const auto begin =
      std::accumulate(pattern.begin(), pattern.begin() + owner, int64_t{0});
  return {begin, pattern[owner]};
}

int64_t total_of(
    const ts::DeviceMesh& mesh,
    ts::PlacementsRef placements,
    int64_t dim,
    const Pattern& pattern) {
  int64_t owners = 1;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    owners *= placements[m].is_shard(dim) ? mesh.size(m) : 1;
  }
  return std::accumulate(pattern.begin(), pattern.begin() + owners, int64_t{0});
}

std::vector<ts::Placements> layouts(int64_t mesh_dims) {
  const std::vector<ts::Placement> kinds{
      ts::Shard(0), ts::Shard(1), ts::Replicate()};
  std::vector<ts::Placements> all{{}};
  for (int64_t m = 0; m < mesh_dims; ++m) {
    std::vector<ts::Placements> longer;
    for (const auto& begun : all) {
      for (const auto& kind : kinds) {
        longer.push_back(begun);
        longer.back().push_back(kind);
      }
    }
    all = std::move(longer);
  }
  return all;
}

// Every mesh, every layout, every pattern: value, layout and gradient are those
// of the whole tensor.
TEST(FromLocalUneven, IsTheWholeInRankOrder) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (outside(mesh)) {
      return;
    }
    for (const auto& placements : layouts(mesh.ndim())) {
      for (size_t k = 0; k < patterns().size(); ++k) {
        const auto& rows = patterns()[k];
        const auto& columns = patterns()[(k + 1) % patterns().size()];
        SCOPED_TRACE(ts::to_string(placements) + " " + std::to_string(k));
        const auto whole = torch::arange(
                               total_of(mesh, placements, 0, rows) *
                                   total_of(mesh, placements, 1, columns),
                               torch::kDouble)
                               .view(
                                   {total_of(mesh, placements, 0, rows),
                                    total_of(mesh, placements, 1, columns)});
        const auto weight = whole.sin();
        std::vector<at::Tensor> locals;
        std::vector<at::Tensor> expected;
        for (const int64_t p : mesh.local_positions()) {
          const auto r = slice_of(mesh, placements, 0, p, rows);
          const auto c = slice_of(mesh, placements, 1, p, columns);
          const auto part = [&](const at::Tensor& of) {
            return of.narrow(0, r.begin, r.size).narrow(1, c.begin, c.size);
          };
          // Every other one transposed in memory.
          auto local = part(whole);
          local = k % 2 == 0 ? local.clone() : local.t().contiguous().t();
          locals.push_back(local.requires_grad_());
          expected.push_back(part(weight));
        }
        const auto x =
            ts::DTensor::from_local(locals, mesh, placements, {.uneven = true});
        EXPECT_EQ(x.sizes(), whole.sizes());
        EXPECT_TRUE(x.is_contiguous());
        EXPECT_EQ(ts::to_string(x.placements()), ts::to_string(placements));
        EXPECT_TRUE(x.full_tensor().equal(whole));
        const auto factor = ts::distribute_tensor(weight, mesh, placements);
        (x * factor).sum().backward();
        for (size_t i = 0; i < locals.size(); ++i) {
          ASSERT_TRUE(locals[i].grad().defined());
          EXPECT_TRUE(locals[i].grad().equal(expected[i]));
        }
      }
    }
  });
}

TEST(FromLocalUneven, MovesOnlyTheRowsInExcess) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const Pattern rows{1025, 1024, 1024, 1024};
    std::vector<at::Tensor> locals;
    for (const int64_t p : mesh.local_positions()) {
      locals.push_back(torch::full({rows[p], 8}, double(p)));
    }
    const ts::CommDebugMode comm;
    const auto x =
        ts::DTensor::from_local(locals, mesh, {ts::Shard(0)}, {.uneven = true});
    EXPECT_EQ(x.size(0), 4097);
    // Parts of 1025, 1025, 1025 and 1022: rank 1 lacks one, rank 2 two.
    const std::map<int64_t, int64_t> excess{{0, 0}, {1, 0}, {2, 1}, {3, 2}};
    for (const auto& record : comm.get_records()) {
      EXPECT_EQ(record.op.substr(0, 6) == "aten::", false) << record.op;
      if (record.collective == "all_to_all_rows") {
        for (const auto& [rank, bytes] : record.bytes_by_rank) {
          // Rank r sends what the ranks before it lack.
          EXPECT_EQ(bytes, excess.at(rank) * 8 * 4) << rank;
        }
      }
    }
    EXPECT_NEAR(x.mean().item<double>(), (1.0 + 2.0 + 3.0) * 1024 / 4097, 1e-4);
  });
}

TEST(FromLocalUneven, AnEvenBatchMovesNothingAndSharesMemory) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    std::vector<at::Tensor> locals;
    for (const int64_t p : mesh.local_positions()) {
      locals.push_back(torch::full({3, 2}, double(p)));
    }
    const ts::CommDebugMode comm;
    auto x =
        ts::DTensor::from_local(locals, mesh, {ts::Shard(0)}, {.uneven = true});
    EXPECT_EQ(comm.get_comm_counts().count("all_to_all_rows"), 0u);
    x.add_(1);
    EXPECT_TRUE(
        locals[0].equal(torch::full({3, 2}, 1.0 + mesh.local_positions()[0])));
  });
}

TEST(FromLocalUneven, GradientsOfGradients) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const Pattern rows{3, 0, 2, 1};
    std::vector<at::Tensor> locals;
    for (const int64_t p : mesh.local_positions()) {
      locals.push_back(
          torch::full({rows[p], 2}, 1.0 + p, torch::kDouble).requires_grad_());
    }
    const auto x =
        ts::DTensor::from_local(locals, mesh, {ts::Shard(0)}, {.uneven = true});
    std::vector<at::Tensor> grads = torch::autograd::grad(
        {x.pow(3).sum()},
        locals,
        {},
        /*retain_graph=*/true,
        /*create_graph=*/true);
    at::Tensor loss;
    for (const auto& grad : grads) {
      loss = loss.defined() ? loss + grad.pow(2).sum() : grad.pow(2).sum();
    }
    loss.backward();
    // d/dv (3 v^2)^2 = 36 v^3.
    for (const auto& local : locals) {
      EXPECT_TRUE(local.grad().allclose(36 * local.detach().pow(3)));
    }
  });
}

TEST(FromLocalUneven, RefusesWhatDoesNotFitTogether) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const ts::FromLocalOptions uneven{.uneven = true};
    const auto with = [&](auto make) {
      std::vector<at::Tensor> locals;
      for (const int64_t p : mesh.local_positions()) locals.push_back(make(p));
      return ts::DTensor::from_local(locals, mesh, {ts::Shard(0)}, uneven);
    };
    throws_saying<c10::ValueError>("differ in dimension 1 on [S(0)]", [&] {
      with([](int64_t p) { return torch::ones({2, p == 3 ? 4 : 5}); });
    });
    throws_saying<c10::ValueError>("[from_local]", [&] {
      with([](int64_t p) {
        return p == 3 ? torch::ones({2, 5, 1}) : torch::ones({2, 5});
      });
    });
    throws_saying<c10::ValueError>("[from_local]", [&] {
      with([](int64_t p) {
        return torch::ones({2, 5}, p == 3 ? torch::kDouble : torch::kFloat);
      });
    });
    throws_saying<c10::ValueError>("together with shape", [&] {
      ts::DTensor::from_local(
          torch::ones({2, 5}),
          mesh,
          {ts::Shard(0)},
          {.shape = ts::Sizes{8, 5}, .uneven = true});
    });
    // And the ranks go on together.
    EXPECT_EQ(
        with([](int64_t p) { return torch::ones({p, 5}); }).sum().item<float>(),
        30);
  });
}

TEST(FromLocalUneven, ReplicasBecomeTheFirstOnesWithRunCheck) {
  ts::testing::with_mesh({2, 2}, [](const ts::DeviceMesh& mesh) {
    std::vector<at::Tensor> locals;
    for (const int64_t p : mesh.local_positions()) {
      locals.push_back(torch::full({1 + 2 * mesh.coordinate(p, 0)}, double(p)));
    }
    const auto x = ts::DTensor::from_local(
        locals,
        mesh,
        {ts::Shard(0), ts::Replicate()},
        {.run_check = true, .uneven = true});
    EXPECT_TRUE(x.full_tensor().equal(torch::tensor({0.f, 2.f, 2.f, 2.f})));
  });
}

}  // namespace from_local_uneven_test
