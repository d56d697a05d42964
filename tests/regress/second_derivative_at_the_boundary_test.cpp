// Second derivatives through full_tensor() used to be too large by the number
// of simulated ranks, those through a tensor that ranks share too small; those
// by a plain gradient were dropped.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace second_derivative_at_the_boundary_test {

using torch::autograd::grad;

at::Tensor value() {
  return torch::arange(1, 16, torch::kDouble).view({5, 3}) / 4;
}

at::Tensor gradient_of(const at::Tensor& loss, const at::Tensor& leaf) {
  return grad({loss}, {leaf}, {}, std::nullopt, /*create_graph=*/true)[0];
}

// Every shard that lives here, replicas too.
void expect_value(const at::Tensor& actual, const at::Tensor& wanted) {
  const ts::DTensor tensor(actual.detach());
  const auto all =
      ts::testing::shards_of(wanted, tensor.mesh(), tensor.placements(), 0);
  const auto shards = tensor.shards();
  const auto positions = tensor.mesh().local_positions();
  for (size_t i = 0; i < shards.size(); ++i) {
    EXPECT_EQ(ts::testing::difference(shards[i], all[positions[i]]), "")
        << "at " << positions[i];
  }
}

TEST(SecondDerivative, ThroughFullTensor) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto& placements :
         ts::testing::layouts(mesh, 2, ts::ReduceOp::Sum)) {
      SCOPED_TRACE(ts::to_string(placements));
      const auto leaf =
          at::Tensor(ts::testing::laid_out(value(), mesh, placements, 3))
              .detach()
              .requires_grad_();
      const auto whole = ts::DTensor(leaf).full_tensor();
      const auto first = gradient_of(whole.pow(3).sum(), leaf);
      expect_value(first, 3 * value().pow(2));
      const auto second =
          gradient_of(ts::DTensor(first.pow(2).sum()).full_tensor(), leaf);
      expect_value(second, 36 * value().pow(3));
      const auto third =
          gradient_of(ts::DTensor(second.sum()).full_tensor(), leaf);
      expect_value(third, 108 * value().pow(2));
    }
  });
}

// The whole of which every rank's part is `local`, with plain ops.
at::Tensor joined(
    at::Tensor local, const ts::DeviceMesh& mesh, const ts::Placements& at) {
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (at[m].is_shard()) {
      const std::vector<at::Tensor> parts(mesh.size(m), local);
      local = at::cat(parts, at[m].dim());
    } else if (at[m].is_partial() && at[m].reduce_op() == ts::ReduceOp::Sum) {
      local = local * mesh.size(m);
    }
  }
  return local;
}

TEST(SecondDerivative, ThroughATensorThatRanksShare) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (!mesh.simulated()) {
      return;
    }
    auto all = ts::testing::layouts(mesh, 2, ts::ReduceOp::Sum);
    const auto averages = ts::testing::layouts(mesh, 2, ts::ReduceOp::Avg);
    all.insert(all.end(), averages.begin(), averages.end());
    for (const auto& placements : all) {
      SCOPED_TRACE(ts::to_string(placements));
      const auto derivatives = [&](bool distributed, bool whole) {
        const auto leaf = value().requires_grad_();
        at::Tensor x = joined(leaf, mesh, placements);
        if (distributed) {
          x = ts::DTensor::from_local(leaf, mesh, placements);
          x = whole ? ts::DTensor(x).full_tensor() : x;
        }
        const auto first = gradient_of(x.pow(3).sum(), leaf);
        const auto second = gradient_of(first.pow(2).sum(), leaf);
        return std::vector{first.detach(), second.detach()};
      };
      const auto wanted = derivatives(false, false);
      for (const bool whole : {true, false}) {
        const auto actual = derivatives(true, whole);
        for (size_t i = 0; i < wanted.size(); ++i) {
          EXPECT_EQ(ts::testing::difference(actual[i], wanted[i]), "")
              << "derivative " << i + 1 << ", whole " << whole;
        }
      }
    }
  });
}

TEST(SecondDerivative, ByAPlainGradient) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto& placements : ts::testing::layouts(mesh, 2)) {
      SCOPED_TRACE(ts::to_string(placements));
      const auto leaf =
          ts::distribute_tensor(
              value(), mesh, placements, {.same_on_all_ranks = true})
              .requires_grad_();
      const auto plain = value().cos().requires_grad_();
      const auto first = grad(
          {leaf * 2}, {leaf}, {plain}, std::nullopt, /*create_graph=*/true)[0];
      expect_value(first, 2 * plain.detach());
      ASSERT_TRUE(first.requires_grad());
      const auto loss = ts::DTensor(first.pow(2).sum()).full_tensor();
      const auto second = grad({loss}, {plain})[0];
      EXPECT_EQ(
          ts::testing::difference(second.detach(), 8 * plain.detach()), "");
    }
  });
}

// Replicas are equal: that one was not used changes nothing.
TEST(SecondDerivative, AReplicaThatIsNotUsedHasTheOthersGradient) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (!mesh.simulated()) {
      return;
    }
    for (const auto& placements : ts::testing::layouts(mesh, 2)) {
      SCOPED_TRACE(ts::to_string(placements));
      const auto leaf =
          ts::distribute_tensor(value(), mesh, placements).requires_grad_();
      const auto shards = ts::DTensor(leaf).shards();
      // The first of each set of replicas.
      at::Tensor loss = torch::zeros({}, torch::kDouble);
      for (size_t i = 0; i < shards.size(); ++i) {
        bool first = true;
        for (int64_t m = 0; m < mesh.ndim(); ++m) {
          first &= !placements[m].is_replicate() ||
                   mesh.coordinate(mesh.local_positions()[i], m) == 0;
        }
        loss = first ? loss + shards[i].pow(3).sum() : loss;
      }
      expect_value(grad({loss}, {leaf})[0], 3 * value().pow(2));
    }
  });
}

}  // namespace second_derivative_at_the_boundary_test
