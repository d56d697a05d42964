// Over processes the tensor of a rank that is not the first of its replicas
// used to get no gradient.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace from_local_replica_gradient_test {

// What each local position holds of `value`, as leaves.
std::vector<at::Tensor> leaves(
    const at::Tensor& value,
    const ts::DeviceMesh& mesh,
    ts::PlacementsRef placements) {
  const auto all = ts::testing::shards_of(value, mesh, placements, 7);
  std::vector<at::Tensor> here;
  for (const int64_t position : mesh.local_positions()) {
    here.push_back(all[position].detach().clone().requires_grad_());
  }
  return here;
}

// The layout of the gradient: a term's is whole.
ts::Placements without_terms(ts::Placements placements) {
  for (auto& placement : placements) {
    placement = placement.is_partial() ? ts::Replicate() : placement;
  }
  return placements;
}

TEST(FromLocalReplicaGradient, ReachesEveryRanksOwnTensor) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    // Even, uneven and empty shards.
    for (const int64_t rows : {8, 5, 2}) {
      const auto value = torch::arange(rows * 3, torch::kDouble).view({-1, 3});
      const auto weight = value.sin();
      for (const auto& placements :
           ts::testing::layouts(mesh, 2, ts::ReduceOp::Sum)) {
        SCOPED_TRACE(ts::to_string(placements));
        const auto locals = leaves(value, mesh, placements);
        const ts::FromLocalOptions options{
            .shape = ts::Sizes{rows, 3}, .stride = ts::Sizes{3, 1}};
        // Over processes a rank passes one tensor, in a simulated world one for
        // each rank.
        const auto x =
            locals.size() == 1
                ? ts::DTensor::from_local(locals[0], mesh, placements, options)
                : ts::DTensor::from_local(locals, mesh, placements, options);
        (x.full_tensor() * weight).sum().backward();
        const auto wanted = leaves(weight, mesh, without_terms(placements));
        for (size_t i = 0; i < locals.size(); ++i) {
          ASSERT_TRUE(locals[i].grad().defined());
          EXPECT_TRUE(locals[i].grad().equal(wanted[i])) << locals[i].grad();
        }
      }
    }
  });
}

TEST(FromLocalReplicaGradient, ReachesWhatAGuardReplicates) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto x =
        ts::ones({4}, mesh, ts::Placements(mesh.ndim(), ts::Shard(0)));
    const auto plain = torch::ones({4}, torch::requires_grad());
    const ts::ImplicitReplication guard;
    ts::DTensor((x * plain).sum()).full_tensor().backward();
    ASSERT_TRUE(plain.grad().defined());
  });
}

}  // namespace from_local_replica_gradient_test
