// A parameter that was copied, loaded or made by other means than
// distribute_tensor used to keep its gradients as pending sums, which every op
// of an optimizer then reduced again.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace grad_layout_of_copies_test {

ts::DTensor weight_on(const ts::DeviceMesh& mesh, at::IntArrayRef sizes) {
  torch::manual_seed(5);
  return ts::distribute_tensor(
      torch::randn(sizes).requires_grad_(),
      mesh,
      {},
      {.same_on_all_ranks = true});
}

at::Tensor batch_on(const ts::DeviceMesh& mesh) {
  return ts::ones({8, 4}, mesh, ts::Placements(mesh.ndim(), ts::Shard(0)));
}

void expect_replicated(const at::Tensor& grad) {
  ASSERT_TRUE(ts::is_dtensor(grad));
  for (const auto& placement : ts::DTensor(grad).placements()) {
    EXPECT_TRUE(placement.is_replicate()) << placement.str();
  }
}

// The leaves that users make of a distributed parameter.
std::vector<at::Tensor> copies_of(const ts::DTensor& weight) {
  const torch::NoGradGuard no_grad;
  auto emptied = torch::empty_like(weight);
  emptied.copy_(weight);
  return {
      weight,
      weight.detach().clone().requires_grad_(),
      weight.detach().requires_grad_(),  // shares its shards
      emptied.requires_grad_(),
      (weight * 1).requires_grad_(),
      ts::DTensor::from_local(weight.shards(), weight.mesh(), {})
          .requires_grad_()};
}

TEST(GradLayoutOfCopies, EveryLeafGetsItsGradientInItsOwnLayout) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto weight = weight_on(mesh, {4, 3});
    const auto x = batch_on(mesh);
    at::Tensor wanted;
    for (const auto& leaf : copies_of(weight)) {
      for (int round = 0; round < 2; ++round) {
        leaf.mutable_grad() = at::Tensor();
        at::mm(x, leaf).pow(2).sum().backward();
        expect_replicated(leaf.grad());
        const auto grad = ts::DTensor(leaf.grad()).full_tensor();
        wanted = wanted.defined() ? wanted : grad;
        EXPECT_TRUE(grad.equal(wanted));
      }
    }
  });
}

// A new leaf that takes the place of an older one, in memory too.
TEST(GradLayoutOfCopies, LeavesThatComeAndGo) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto x = batch_on(mesh);
    at::Tensor leaf = weight_on(mesh, {4, 3});
    for (int round = 0; round < 8; ++round) {
      at::mm(x, leaf).sum().backward();
      expect_replicated(leaf.grad());
      leaf = leaf.detach();  // the older leaf dies here
      leaf.requires_grad_();
    }
  });
}

// data is exchanged for a tensor in another layout: so are the gradients.
TEST(GradLayoutOfCopies, FollowsTheLeafToAnotherLayout) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto x = batch_on(mesh);
    const auto leaf = weight_on(mesh, {4, 3});
    at::mm(x, leaf).sum().backward();
    const ts::Placements columns(mesh.ndim(), ts::Shard(1));
    leaf.mutable_grad() = at::Tensor();
    leaf.set_data(ts::DTensor(leaf.detach()).redistribute(columns));
    at::mm(x, leaf).sum().backward();
    EXPECT_EQ(
        ts::DTensor(leaf.grad()).placements(), ts::PlacementsRef(columns));
  });
}

// A hook sees the gradient as the leaf lies, whether it came before the first
// use of the leaf or after.
TEST(GradLayoutOfCopies, HooksSeeTheLaidOutGradient) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto x = batch_on(mesh);
    for (const bool used_before : {false, true}) {
      const auto leaf =
          weight_on(mesh, {4, 3}).detach().clone().requires_grad_();
      if (used_before) {
        at::mm(x, leaf).sum().backward();
      }
      int calls = 0;
      leaf.register_hook([&](const at::Tensor& grad) {
        expect_replicated(grad);
        ++calls;
      });
      at::mm(x, leaf).sum().backward();
      EXPECT_EQ(calls, 1);
      expect_replicated(leaf.grad());
    }
  });
}

// Collectives of three steps of AdamW, of which the optimizer has no part.
int64_t training_counts(const at::Tensor& first, const at::Tensor& second) {
  const auto x = batch_on(ts::DTensor(first).mesh());
  torch::optim::AdamW optimizer({first, second});
  ts::CommDebugMode comm;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    at::mm(at::mm(x, first).relu(), second).sum().backward();
    const auto after_backward = comm.get_total_counts();
    optimizer.step();
    EXPECT_EQ(comm.get_total_counts(), after_backward);
  }
  return comm.get_total_counts();
}

TEST(GradLayoutOfCopies, AnOptimizerReducesNothing) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto first = weight_on(mesh, {4, 6});
    const auto second = weight_on(mesh, {6, 2});
    const auto copied_first = first.detach().clone().requires_grad_();
    const auto copied_second = second.detach().clone().requires_grad_();
    EXPECT_EQ(
        training_counts(copied_first, copied_second),
        training_counts(first, second));
  });
}

}  // namespace grad_layout_of_copies_test
