// from_local, to_local and shards: the boundary to plain tensors.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;
using ts::testing::for_each_mesh;
using ts::testing::outside;
using ts::testing::throws_saying;

namespace from_local_test {

// A shard for each rank that lives here: filled with its position.
std::vector<at::Tensor> filled_shards(
    const ts::DeviceMesh& mesh, at::IntArrayRef sizes) {
  std::vector<at::Tensor> shards;
  for (const int64_t position : mesh.local_positions()) {
    shards.push_back(torch::full(sizes, static_cast<double>(position)));
  }
  return shards;
}

TEST(FromLocal, OneShardARank) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() != 1 || outside(mesh)) {
      return;
    }
    const auto d = ts::DTensor::from_local(
        filled_shards(mesh, {2, 3}), mesh, {ts::Shard(0)});
    EXPECT_EQ(d.sizes(), at::IntArrayRef({2 * mesh.size(), 3}));
    const auto wanted = torch::arange(mesh.size(), torch::kFloat)
                            .repeat_interleave(2)
                            .unsqueeze(1)
                            .expand({-1, 3});
    EXPECT_TRUE(d.full_tensor().equal(wanted));
  });
}

TEST(FromLocal, OneTensorForAllRanks) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto local = torch::ones({2, 3});
    const ts::Placements pending(mesh.ndim(), ts::Partial());
    const auto d = ts::DTensor::from_local(local, mesh, pending);
    const auto full = d.full_tensor();
    if (!outside(mesh)) {
      EXPECT_TRUE(
          full.equal(torch::full({2, 3}, static_cast<double>(mesh.size()))));
    }
  });
}

TEST(FromLocal, SendsNothing) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    ts::CommDebugMode comm;
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    ts::DTensor::from_local(torch::ones({2}), mesh, rows).shards();
    EXPECT_EQ(comm.get_total_counts(), 0);
  });
}

TEST(FromLocal, UnevenShardsNeedTheShape) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() != 1 || mesh.size() != 4 || outside(mesh)) {
      return;
    }
    std::vector<at::Tensor> shards;
    for (const int64_t position : mesh.local_positions()) {
      shards.push_back(torch::ones({ts::chunk(7, 4, position).size, 2}));
    }
    const auto d = ts::DTensor::from_local(
        shards,
        mesh,
        {ts::Shard(0)},
        {.shape = ts::Sizes{7, 2}, .stride = ts::Sizes{2, 1}});
    EXPECT_TRUE(d.full_tensor().equal(torch::ones({7, 2})));
    throws_saying<c10::ValueError>(
        "for uneven shards pass options.uneven, or options.shape", [&] {
          ts::DTensor::from_local(
              torch::ones({3, 2}),
              mesh,
              {ts::Shard(0)},
              {.shape = ts::Sizes{7, 2}, .stride = ts::Sizes{2, 1}});
        });
  });
}

TEST(FromLocal, StridesFollowTheShards) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    const auto d = ts::DTensor::from_local(torch::ones({3, 2}).t(), mesh, rows);
    EXPECT_EQ(d.stride(0), 1);
    EXPECT_EQ(d.stride(1), d.size(0));
  });
}

TEST(FromLocal, RunCheckComparesShapesAndBroadcastsReplicas) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (outside(mesh)) {
      return;
    }
    const auto d = ts::DTensor::from_local(
        filled_shards(mesh, {2}), mesh, {}, {.run_check = true});
    EXPECT_TRUE(d.full_tensor().equal(torch::zeros({2})));
    if (mesh.ndim() != 1 || mesh.size() == 1) {
      return;
    }
    // Every rank throws, whichever has the odd shard.
    std::vector<at::Tensor> odd;
    for (const int64_t position : mesh.local_positions()) {
      odd.push_back(torch::ones({position == 1 ? 3 : 2}));
    }
    throws_saying<c10::ValueError>("[from_local]", [&] {
      ts::DTensor::from_local(odd, mesh, {ts::Shard(0)}, {.run_check = true});
    });
  });
}

TEST(FromLocal, RefusesWhatDoesNotFit) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const ts::Placements replicated(mesh.ndim(), ts::Replicate());
    const auto d = ts::distribute_tensor(torch::ones({2}), mesh);
    throws_saying<c10::TypeError>("must be a plain tensor", [&] {
      ts::DTensor::from_local(d, mesh, replicated);
    });
    throws_saying<c10::ValueError>("must have the same length", [&] {
      const ts::Placements many(mesh.ndim() + 1, ts::Replicate());
      ts::DTensor::from_local(torch::ones({2}), mesh, many);
    });
    const std::vector<at::Tensor> too_many(
        mesh.local_positions().size() + 2, torch::ones({2}));
    throws_saying<c10::ValueError>("live in this process", [&] {
      ts::DTensor::from_local(too_many, mesh, replicated);
    });
  });
}

TEST(FromLocal, MixedReductionsThatDoNotCommuteAreRefused) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() != 2) {
      return;
    }
    throws_saying<c10::ValueError>("order", [&] {
      ts::DTensor::from_local(
          torch::ones({2}),
          mesh,
          {ts::Partial(), ts::Partial(ts::ReduceOp::Max)});
    });
  });
}

// A layout that was worked out is remembered: what it was worked out of must be
// the same.
TEST(FromLocal, WhatItRemembersIsOfTheSameShard) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    const ts::Placements columns(mesh.ndim(), ts::Shard(1));
    const ts::Placements most(mesh.ndim(), ts::Partial(ts::ReduceOp::Max));
    const auto local = torch::arange(6.).view({2, 3});
    const auto made = [&](const at::Tensor& tensor, const auto& placements) {
      return ts::DTensor::from_local(tensor, mesh, placements);
    };
    for (int twice = 0; twice < 2; ++twice) {
      EXPECT_EQ(made(local, rows).size(0), 2 * mesh.size());
      EXPECT_EQ(made(local, columns).size(0), 2);
      EXPECT_EQ(made(local.view({3, 2}), rows).size(0), 3 * mesh.size());
      EXPECT_EQ(made(local.view({3, 2}).t(), rows).stride(0), 1);
      EXPECT_EQ(made(local.to(at::kInt), rows).scalar_type(), at::kInt);
      EXPECT_EQ(made(local, most).sizes(), local.sizes());
      throws_saying<c10::NotImplementedError>("requires grad", [&] {
        made(local.detach().requires_grad_(), most);
      });
      throws_saying<c10::TypeError>(
          "ordinary tensor", [&] { made(local.to_sparse(), rows); });
      throws_saying<c10::TypeError>(
          "plain tensor", [&] { made(at::Tensor(), rows); });
    }
  });
}

TEST(FromLocal, GradientsReachTheShards) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() != 1 || outside(mesh)) {
      return;
    }
    for (const auto& placement :
         {ts::Shard(0), ts::Replicate(), ts::Partial()}) {
      SCOPED_TRACE(placement.str());
      auto shards = filled_shards(mesh, {2});
      for (auto& shard : shards) {
        shard.requires_grad_();
      }
      const auto d = ts::DTensor::from_local(shards, mesh, {placement});
      (d * 3).sum().backward();
      for (const auto& shard : shards) {
        EXPECT_FALSE(ts::is_dtensor(shard.grad()));
        EXPECT_TRUE(shard.grad().equal(torch::full({2}, 3.0)));
      }
    }
  });
}

TEST(FromLocal, ASharedTensorGetsEachTermOnce) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() != 1 || !mesh.simulated()) {
      return;
    }
    const auto grad_for = [&](const ts::Placement& placement) {
      auto local = torch::ones({2}).requires_grad_();
      ts::DTensor::from_local(local, mesh, {placement}).sum().backward();
      return local.grad()[0].item<double>();
    };
    const auto ranks = static_cast<double>(mesh.size());
    EXPECT_EQ(grad_for(ts::Replicate()), 1);
    EXPECT_EQ(grad_for(ts::Shard(0)), ranks);
    EXPECT_EQ(grad_for(ts::Partial()), ranks);
  });
}

TEST(FromLocal, WritesHappenOnceWhereRanksShareATensor) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (outside(mesh)) {
      return;
    }
    auto one = ts::DTensor::from_local(torch::zeros({3}), mesh);
    one.add_(1);
    EXPECT_TRUE(one.full_tensor().equal(torch::ones({3})));
    const std::vector<at::Tensor> same(
        mesh.local_positions().size(), torch::zeros({3}));
    auto many = ts::DTensor::from_local(same, mesh);
    many.add_(1);
    EXPECT_TRUE(many.full_tensor().equal(torch::ones({3})));
  });
}

TEST(Shards, GradientsOfSeveralPassesPileUpOnce) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (outside(mesh) || mesh.ndim() != 1) {
      return;
    }
    auto d = ts::distribute_tensor(
        torch::ones({2 * mesh.size(), 2}).requires_grad_(),
        mesh,
        {ts::Shard(0)});
    for (int pass = 1; pass <= 3; ++pass) {
      // One gradient for all shards: autograd hands the same tensor to each.
      at::Tensor sum;
      for (const auto& shard : d.shards()) {
        sum = sum.defined() ? sum + shard : shard;
      }
      sum.sum().backward();
      EXPECT_TRUE(ts::DTensor(d.grad()).full_tensor().equal(
          torch::full({2 * mesh.size(), 2}, static_cast<double>(pass))));
    }
  });
}

TEST(Shards, AreDifferentiable) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (outside(mesh)) {
      return;
    }
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    auto d =
        ts::distribute_tensor(torch::ones({5, 2}).requires_grad_(), mesh, rows);
    at::Tensor sum;
    for (const auto& shard : d.shards()) {
      const auto term = (shard * 2).sum();
      sum = sum.defined() ? sum + term : term;
    }
    sum.backward();
    const ts::DTensor grad(d.grad());
    EXPECT_EQ(grad.placements(), ts::PlacementsRef(rows));
    EXPECT_TRUE(grad.full_tensor().equal(torch::full({5, 2}, 2.0)));
  });
}

TEST(ToLocal, GivesTheShardOrSaysHowToGetIt) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto d = ts::distribute_tensor(torch::ones({3, 2}), mesh);
    if (mesh.local_positions().size() > 1) {
      throws_saying<c10::Error>("use shard(rank)", [&] { d.to_local(); });
    } else {
      EXPECT_EQ(d.to_local().numel(), outside(mesh) ? 0 : 6);
    }
    throws_saying<c10::IndexError>("rank 99", [&] { d.shard(99); });
  });
}

TEST(DTensorHandle, WantsADistributedTensor) {
  throws_saying<c10::TypeError>(
      "expected a distributed tensor", [] { ts::DTensor{torch::ones({2})}; });
  throws_saying<c10::TypeError>(
      "an undefined one", [] { ts::DTensor{at::Tensor()}; });
}

TEST(DTensorHandle, PrintsLayoutAndShards) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (outside(mesh)) {
      return;
    }
    const ts::Placements rows(mesh.ndim(), ts::Shard(0));
    std::ostringstream out;
    out << ts::distribute_tensor(torch::full({8}, 7.0), mesh, rows);
    EXPECT_NE(out.str().find("DTensor(Float[8] on [S(0)"), std::string::npos)
        << out.str();
    EXPECT_NE(out.str().find("rank "), std::string::npos);
    EXPECT_NE(out.str().find("7"), std::string::npos);
  });
}

}  // namespace from_local_test
