// Tensors that are gone leave memory to the next ones: what else they were
// given must not come along, and threads may end before their tensors do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace recycled_memory_test {

using ::testing::HasSubstr;

// Calls `body` with ones that are sharded over four ranks.
void with_ones(const std::function<void(const at::Tensor&)>& body) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    body(ts::distribute_tensor(torch::ones({8, 2}), mesh, {ts::Shard(0)}));
  }));
}

bool is_full_of(const at::Tensor& tensor, double value) {
  return at::equal(
      ts::DTensor(tensor.detach()).full_tensor(), torch::full({8, 2}, value));
}

// More tensors at once than are kept, again and again.
TEST(RecycledMemory, ManyTensorsHaveTheirValuesAndErrors) {
  with_ones([](const at::Tensor& x) {
    for (int round = 0; round < 3; ++round) {
      std::vector<at::Tensor> alive;
      for (int i = 0; i < 100; ++i) {
        alive.push_back(x + i);
      }
      for (int i = 0; i < 100; ++i) {
        ASSERT_TRUE(is_full_of(alive[i], 1 + i)) << i;
        for (const auto& access :
             {ts::testing::error_of([&] { alive[i].storage(); }),
              ts::testing::error_of([&] { alive[i].data_ptr(); })}) {
          ASSERT_THAT(access, HasSubstr("use full_tensor()"));
        }
      }
    }
  });
}

// What a tensor that is gone had besides: gradients, a view of another.
TEST(RecycledMemory, NothingElseComesAlong) {
  with_ones([](const at::Tensor& x) {
    for (int round = 0; round < 50; ++round) {
      auto y = x.detach().requires_grad_();
      (y * y).sum().backward();
      const auto view = y.detach().t();
    }
    const auto fresh = x + 1;
    EXPECT_FALSE(fresh.requires_grad());
    EXPECT_FALSE(fresh.grad().defined());
    EXPECT_FALSE(fresh.is_view());
    EXPECT_TRUE(is_full_of(fresh, 2));
  });
}

// Tensors that hold others, by what computes their gradients, go together.
TEST(RecycledMemory, ChainsOfTensors) {
  with_ones([](const at::Tensor& x) {
    for (int round = 0; round < 20; ++round) {
      auto y = x.detach().requires_grad_();
      for (int i = 0; i < 100; ++i) {
        y = y * y;
      }
      EXPECT_TRUE(is_full_of(y, 1));
    }
    EXPECT_TRUE(is_full_of(x + 1, 2));
  });
}

// Made in a thread that has ended, and freed in another that ends.
TEST(RecycledMemory, TensorsOutliveThreads) {
  with_ones([](const at::Tensor& x) {
    std::vector<at::Tensor> made;
    std::thread([&] {
      for (int i = 0; i < 100; ++i) {
        made.push_back(x * i);
      }
    }).join();
    EXPECT_TRUE(is_full_of(made[7], 7));
    std::thread([&] { made.clear(); }).join();
    EXPECT_TRUE(is_full_of(x + 1, 2));
  });
}

// A variable of a thread ends before or after what the thread has kept.
TEST(RecycledMemory, VariablesOfThreads) {
  with_ones([](const at::Tensor& x) {
    for (const bool first : {true, false}) {
      std::thread([&] {
        if (first) {
          const auto kept_from_here_on = x + 1;
        }
        thread_local at::Tensor variable;
        variable = x + 3;
      }).join();
    }
    EXPECT_TRUE(is_full_of(x + 1, 2));
  });
}

}  // namespace recycled_memory_test
