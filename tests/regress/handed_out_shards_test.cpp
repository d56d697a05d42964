// to_local, shards, shard and full_tensor hand out memory, not the very tensor
// that a distributed one holds: x.to_local().unsqueeze_(0) used to break x. And
// from_local takes memory, not the caller's tensor.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace handed_out_shards_test {

using Change = std::function<void(at::Tensor)>;

// What changes a tensor but not its elements.
const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      [](at::Tensor t) { t.unsqueeze_(0); },
      [](at::Tensor t) { t.t_(); },
      [](at::Tensor t) { t.resize_({1}); },
      [](at::Tensor t) { t.requires_grad_(); },
      [](at::Tensor t) { t.set_data(torch::zeros({1})); },
      [](at::Tensor t) { t.as_strided_({1}, {1}); },
      [](at::Tensor t) { t.squeeze_(); },
      [](at::Tensor t) { t.set_(torch::zeros({1})); },
  };
  return all;
}

// Changes what is handed out: the distributed tensor stays as it is, and hands
// out the same again.
void check(
    const ts::DTensor& x,
    const at::Tensor& value,
    const std::function<std::vector<at::Tensor>()>& hand_out) {
  for (size_t i = 0; i < changes().size(); ++i) {
    SCOPED_TRACE("change " + std::to_string(i));
    std::vector<at::Tensor> before;
    for (const auto& tensor : hand_out()) {
      before.push_back(tensor.detach().clone());
    }
    for (const auto& tensor : hand_out()) {
      const torch::NoGradGuard no_grad;
      try {
        changes()[i](tensor);
      } catch (const c10::Error&) {
        // Some are refused of a tensor that requires grad.
      }
    }
    const auto again = hand_out();
    ASSERT_EQ(again.size(), before.size());
    for (size_t k = 0; k < again.size(); ++k) {
      EXPECT_TRUE(again[k].equal(before[k])) << again[k] << before[k];
      EXPECT_EQ(again[k].requires_grad(), x.requires_grad());
    }
    EXPECT_TRUE(ts::DTensor(x.detach() * 1).full_tensor().equal(value));
    for (const auto& shard : ts::DTensor(x.detach()).shards()) {
      EXPECT_FALSE(shard.requires_grad());
    }
  }
}

void check_all(const ts::DTensor& x, const at::Tensor& value) {
  const auto& mesh = x.mesh();
  {
    SCOPED_TRACE("shards");
    check(x, value, [&] { return x.shards(); });
  }
  if (mesh.local_positions().size() == 1) {
    SCOPED_TRACE("to_local");
    check(x, value, [&] { return std::vector{x.to_local()}; });
  }
  if (x.placements()[0].is_replicate() && !ts::testing::outside(mesh)) {
    SCOPED_TRACE("full_tensor");
    check(x, value, [&] { return std::vector{x.full_tensor()}; });
  }
  if (!x.requires_grad()) {
    SCOPED_TRACE("shard");
    check(x, value, [&] {
      std::vector<at::Tensor> all;
      for (const int64_t position : mesh.local_positions()) {
        all.push_back(x.shard(mesh.all_ranks()[position]));
      }
      return all;
    });
  }
}

TEST(HandedOutShards, AreNotWhatTheTensorHolds) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{1}, std::vector<int64_t>{4}}) {
    EXPECT_TRUE(ts::testing::with_mesh(shape, [](const ts::DeviceMesh& mesh) {
      if (ts::testing::outside(mesh)) {
        return;
      }
      torch::manual_seed(3);  // ranks outside other meshes drew less
      const auto value = torch::randn({4, 4});
      for (const auto& layout :
           {ts::Placement(ts::Replicate()), ts::Placement(ts::Shard(0))}) {
        SCOPED_TRACE(layout.str());
        const auto x = ts::distribute_tensor(value, mesh, {layout});
        check_all(x, value);
        const auto leaf = ts::DTensor(x.detach().requires_grad_());
        {
          SCOPED_TRACE("with gradients");
          check_all(leaf, value);
        }
        const torch::NoGradGuard no_grad;
        SCOPED_TRACE("without gradients");
        check(x, value, [&] { return x.shards(); });
      }
      const c10::InferenceMode inference;
      SCOPED_TRACE("in inference mode");
      const auto x = ts::distribute_tensor(value, mesh, {ts::Shard(0)});
      for (const auto& shard : x.shards()) {
        EXPECT_TRUE(shard.is_inference());
        shard.unsqueeze_(0);
      }
      EXPECT_TRUE((x * 1).sizes() == value.sizes());
    }));
  }
}

// They share memory: a write is seen in both.
TEST(HandedOutShards, ShareMemory) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto x = ts::zeros({4, 4}, mesh, {ts::Shard(0)});
    for (const auto& shard : x.shards()) {
      shard.add_(1);
    }
    EXPECT_TRUE(x.full_tensor().equal(torch::ones({4, 4})));
    const auto shards = x.shards();
    x.add_(1);
    for (const auto& shard : shards) {
      EXPECT_TRUE(shard.equal(torch::full({1, 4}, 2.0f)));
    }
  }));
}

// What was saved for the backward pass has been written through a shard.
TEST(HandedOutShards, WritesAreCounted) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto x = ts::ones({4, 4}, mesh, {ts::Shard(0)});
    const auto leaf = ts::ones({4, 4}, mesh, {ts::Shard(0)});
    leaf.requires_grad_();
    const auto y = (leaf * x).sum();
    for (const auto& shard : x.shards()) {
      shard.add_(1);
    }
    EXPECT_THROW(y.backward(), c10::Error);
  }));
}

TEST(HandedOutShards, FromLocalTakesMemoryAlone) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    for (const auto& change : changes()) {
      std::vector<at::Tensor> locals;
      for (size_t i = 0; i < mesh.local_positions().size(); ++i) {
        locals.push_back(torch::ones({2, 2}));
      }
      const auto x = ts::DTensor::from_local(locals, mesh, {ts::Shard(0)});
      for (const auto& local : locals) {
        local.add_(1);
        const torch::NoGradGuard no_grad;
        change(local);
      }
      EXPECT_TRUE((x * 1).sum().item<double>() == 2 * 2 * 2 * 4);
      EXPECT_FALSE((x * 1).requires_grad());
    }
  }));
}

}  // namespace handed_out_shards_test
