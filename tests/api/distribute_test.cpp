// distribute_tensor, distribute_ and the way back.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;
using ts::testing::for_each_mesh;
using ts::testing::layouts;
using ts::testing::outside;
using ts::testing::throws_saying;

namespace distribute_test {

at::Tensor numbered(at::IntArrayRef sizes) {
  return torch::arange(c10::multiply_integers(sizes), torch::kFloat)
      .view(sizes);
}

// On ranks outside the mesh full_tensor() is empty: nothing to compare there.
void expect_full(const ts::DTensor& tensor, const at::Tensor& wanted) {
  if (!outside(tensor.mesh())) {
    const auto full = tensor.full_tensor();
    EXPECT_EQ(full.sizes(), wanted.sizes());
    EXPECT_TRUE(full.equal(wanted)) << full << wanted;
  }
}

TEST(DistributeTensor, RoundTripOfEveryLayoutAndShape) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{8, 4}, {5, 3}, {1, 7}, {0, 3}}) {
      const auto x = numbered(shape);
      for (const auto& layout : layouts(mesh, 2)) {
        SCOPED_TRACE(ts::to_string(layout));
        const auto d = ts::distribute_tensor(x, mesh, layout);
        EXPECT_EQ(d.placements(), ts::PlacementsRef(layout));
        EXPECT_EQ(d.sizes(), x.sizes());
        expect_full(d, x);
      }
    }
  });
}

TEST(DistributeTensor, ShardsAreTorchChunks) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() != 1) {
      return;
    }
    const auto x = numbered({5, 2});
    const auto d = ts::distribute_tensor(x, mesh, {ts::Shard(0)});
    const auto chunks = x.chunk(mesh.size(), 0);
    for (const int64_t position : mesh.local_positions()) {
      const auto wanted = position < static_cast<int64_t>(chunks.size())
                              ? chunks[position]
                              : x.slice(0, 0, 0);
      EXPECT_TRUE(d.shard(position).equal(wanted));
    }
  });
}

TEST(DistributeTensor, DefaultIsReplicated) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto d = ts::distribute_tensor(numbered({3}), mesh);
    for (const auto& placement : d.placements()) {
      EXPECT_TRUE(placement.is_replicate());
    }
  });
}

TEST(DistributeTensor, OtherKindsOfTensors) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    for (const auto dtype :
         {torch::kBool,
          torch::kInt8,
          torch::kInt64,
          torch::kHalf,
          torch::kBFloat16,
          torch::kDouble,
          torch::kComplexFloat}) {
      const auto x = numbered({7, 2}).to(dtype);
      expect_full(ts::distribute_tensor(x, mesh, rows), x);
    }
    const auto scalar = torch::tensor(3.5);
    expect_full(ts::distribute_tensor(scalar, mesh), scalar);
    const auto transposed = numbered({4, 6}).t();
    expect_full(ts::distribute_tensor(transposed, mesh, rows), transposed);
  });
}

TEST(DistributeTensor, TheValueIsTheFirstRanks) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const int64_t mine = ts::testing::test_world().rank();
    const auto x = numbered({6, 2}) + (mesh.simulated() ? 0 : 100 * mine);
    for (const auto& layout : layouts(mesh, 1)) {
      expect_full(ts::distribute_tensor(x, mesh, layout), numbered({6, 2}));
    }
  });
}

TEST(DistributeTensor, TrustedCopiesSendNothing) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto x = numbered({5, 4});
    ts::CommDebugMode comm;
    for (const auto& layout : layouts(mesh, 2)) {
      const auto d =
          ts::distribute_tensor(x, mesh, layout, {.same_on_all_ranks = true});
      EXPECT_EQ(comm.get_total_counts(), 0);
      EXPECT_EQ(d.placements(), ts::PlacementsRef(layout));
    }
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    expect_full(
        ts::distribute_tensor(x, mesh, rows, {.same_on_all_ranks = true}), x);
  });
}

TEST(DistributeTensor, ShardsDoNotShareMemoryWithTheSource) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto x = numbered({4});
    auto d = ts::distribute_tensor(x, mesh);
    d.add_(1);
    EXPECT_TRUE(x.equal(numbered({4})));
    expect_full(d, x + 1);
  });
}

TEST(DistributeTensor, KeepsRequiresGradAndIsALeaf) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto d =
        ts::distribute_tensor(torch::ones({4, 2}).requires_grad_(), mesh);
    EXPECT_TRUE(d.requires_grad());
    EXPECT_TRUE(d.is_leaf());
  });
}

TEST(DistributeTensor, RefusesWhatDoesNotFit) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto x = numbered({4, 4});
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    const ts::Placements columns(mesh.ndim(), ts::Shard(1));
    const ts::Placements long_list(mesh.ndim() + 1, ts::Replicate());
    const ts::Placements beyond(mesh.ndim(), ts::Shard(2));
    const ts::Placements pending(mesh.ndim(), ts::Partial());
    throws_saying<c10::ValueError>("must have the same length", [&] {
      ts::distribute_tensor(x, mesh, long_list);
    });
    throws_saying<c10::ValueError>(
        "distribute_tensor", [&] { ts::distribute_tensor(x, mesh, beyond); });
    throws_saying<c10::ValueError>("expected Shard or Replicate", [&] {
      ts::distribute_tensor(x, mesh, pending);
    });
    const auto no_leaf = x.clone().requires_grad_() * 2;
    throws_saying<c10::Error>("distribute leaf tensor", [&] {
      ts::distribute_tensor(no_leaf, mesh, rows);
    });
    const auto d = ts::distribute_tensor(x, mesh, rows);
    EXPECT_TRUE(ts::distribute_tensor(d, mesh, rows).is_same(d));
    throws_saying<c10::ValueError>("to a different placements", [&] {
      ts::distribute_tensor(d, mesh, columns);
    });
    const auto other = ts::DeviceMesh("cpu", mesh.all_ranks().slice(0, 1));
    if (mesh.size() > 1) {
      throws_saying<c10::ValueError>("to a different device mesh", [&] {
        ts::distribute_tensor(d, other, {ts::Shard(0)});
      });
    }
  });
}

TEST(DistributeTensor, NegativeDimsAreNormalised) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const ts::Placements last(mesh.ndim(), ts::Shard(-1));
    const auto d = ts::distribute_tensor(numbered({2, 6}), mesh, last);
    EXPECT_TRUE(d.placements()[0].is_shard(1));
  });
}

TEST(DistributeInPlace, ModuleRegistryAndOptimizerGoOn) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    torch::manual_seed(1);
    torch::nn::Linear plain(6, 5);
    torch::nn::Linear distributed(6, 5);
    {
      torch::NoGradGuard no_grad;
      distributed->weight.copy_(plain->weight);
      distributed->bias.copy_(plain->bias);
    }
    torch::optim::AdamW plain_optimizer(plain->parameters());
    torch::optim::AdamW optimizer(distributed->parameters());
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    ts::distribute_(distributed->weight, mesh, rows);
    ts::distribute_(distributed->bias, mesh, rows);
    EXPECT_TRUE(ts::is_dtensor(distributed->parameters()[0]));
    const auto x = torch::randn({7, 6});
    const auto dx = ts::distribute_tensor(x, mesh);
    for (int step = 0; step < 3; ++step) {
      plain_optimizer.zero_grad();
      optimizer.zero_grad();
      plain(x).pow(2).mean().backward();
      distributed(dx).pow(2).mean().backward();
      plain_optimizer.step();
      optimizer.step();
    }
    if (!outside(mesh)) {
      EXPECT_TRUE(ts::DTensor(distributed->weight)
                      .full_tensor()
                      .allclose(plain->weight, 1e-5, 1e-6));
      EXPECT_TRUE(ts::DTensor(distributed->bias)
                      .full_tensor()
                      .allclose(plain->bias, 1e-5, 1e-6));
    }
  });
}

TEST(DistributeInPlace, ModuleToAnotherDtype) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    torch::nn::Linear linear(4, 4);
    const auto weight = linear->weight.detach().clone();
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    ts::distribute_(linear->weight, mesh, rows);
    linear->to(torch::kBFloat16);
    const ts::DTensor cast(linear->weight);
    EXPECT_EQ(cast.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(cast.placements(), ts::PlacementsRef(rows));
    expect_full(ts::DTensor(cast.detach()), weight.to(torch::kBFloat16));
  });
}

TEST(DistributeTensor, MetaThenEmptyLikeGivesRealShards) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    const auto meta = torch::empty({6, 3}, torch::kMeta);
    const auto d = ts::distribute_tensor(meta, mesh, rows);
    // A rank outside the mesh holds no shard that could be anywhere.
    EXPECT_EQ(d.is_meta(), !outside(mesh));
    const ts::DTensor real(
        torch::empty_like(d, torch::TensorOptions().device(torch::kCPU)));
    EXPECT_EQ(real.placements(), ts::PlacementsRef(rows));
    for (const auto& shard : real.shards()) {
      EXPECT_TRUE(shard.device().is_cpu());
    }
  });
}

}  // namespace distribute_test
