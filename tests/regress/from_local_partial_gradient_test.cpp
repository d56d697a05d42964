// Each term of a pending average used to get the whole gradient instead of its
// share; terms of a pending maximum, minimum or product got one that is wrong
// altogether.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace from_local_partial_gradient_test {

std::vector<at::Tensor> terms(const ts::DeviceMesh& mesh) {
  std::vector<at::Tensor> list;
  for (const int64_t position : mesh.local_positions()) {
    list.push_back(
        torch::full({3, 2}, 1.0 + position, torch::kDouble).requires_grad_());
  }
  return list;
}

TEST(FromLocalPartialGradient, ATermOfAnAverageGetsItsShare) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto weight = torch::arange(6, torch::kDouble).view({3, 2});
    for (int64_t averaged = 0; averaged < mesh.ndim(); ++averaged) {
      ts::Placements placements(mesh.ndim(), ts::Partial());
      placements[averaged] = ts::Partial(ts::ReduceOp::Avg);
      const auto locals = terms(mesh);
      const auto x = ts::DTensor::from_local(locals, mesh, placements);
      (x.full_tensor() * weight).sum().backward();
      for (const auto& local : locals) {
        EXPECT_TRUE(local.grad().allclose(
            weight / static_cast<double>(mesh.size(averaged))))
            << local.grad();
      }
    }
  });
}

// To distributed tensors and back is the identity, and so is its gradient.
TEST(FromLocalPartialGradient, ThereAndBackIsTheIdentity) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto op : {ts::ReduceOp::Sum, ts::ReduceOp::Avg}) {
      const ts::Placements placements(mesh.ndim(), ts::Partial(op));
      const auto locals = terms(mesh);
      const auto back =
          ts::DTensor::from_local(locals, mesh, placements).shards();
      at::Tensor loss;
      for (size_t i = 0; i < back.size(); ++i) {
        const auto part = (back[i] * 3).sum();
        loss = loss.defined() ? loss + part : part;
      }
      loss.backward();
      for (const auto& local : locals) {
        EXPECT_TRUE(local.grad().allclose(torch::full_like(local, 3)))
            << local.grad();
      }
    }
  });
}

// A tensor that every rank shares is its own average.
TEST(FromLocalPartialGradient, ASharedTermIsItsOwnAverage) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh) || ts::testing::over_processes()) {
      return;  // over processes a rank's tensor is one term
    }
    const ts::Placements placements(
        mesh.ndim(), ts::Partial(ts::ReduceOp::Avg));
    const auto local = torch::ones({3}, torch::requires_grad());
    ts::DTensor::from_local(local, mesh, placements)
        .full_tensor()
        .sum()
        .backward();
    EXPECT_TRUE(local.grad().allclose(torch::ones({3}))) << local.grad();
  });
}

TEST(FromLocalPartialGradient, IsRefusedWhereThereIsNone) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    for (const auto op :
         {ts::ReduceOp::Max, ts::ReduceOp::Min, ts::ReduceOp::Product}) {
      const ts::Placements placements(mesh.ndim(), ts::Partial(op));
      const auto local = torch::ones({3}, torch::requires_grad());
      ts::testing::throws_saying<c10::NotImplementedError>("[from_local]", [&] {
        ts::DTensor::from_local(local, mesh, placements);
      });
      // Without a gradient to give there is nothing to refuse.
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(
          ts::is_dtensor(ts::DTensor::from_local(local, mesh, placements)));
    }
  });
}

}  // namespace from_local_partial_gradient_test
