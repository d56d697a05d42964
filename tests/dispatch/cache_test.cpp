// The cache of plans: every argument that matters is in its key, and it is
// bounded.
#include "dispatch/plan_cache.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/dispatch/full_value.h"

namespace tessera {
namespace cache_test {

using detail::PlanCache;
using tessera::testing::expect_value;
using tessera::testing::laid_out;
using tessera::testing::on_four_ranks;

using Call = std::function<at::Tensor(const at::Tensor&)>;

// Calls of one op that differ only in a plain argument.
const std::vector<std::vector<Call>>& families() {
  using T = const at::Tensor&;
  static const std::vector<std::vector<Call>> list = {
      {[](T x) { return x.sum(0); },
       [](T x) { return x.sum(1); },
       [](T x) { return x.sum(1, true); },
       [](T x) { return x.sum(1, true, at::kFloat); },
       [](T x) { return x.sum(at::IntArrayRef({0, 1})); }},
      {[](T x) { return x.slice(0, 0, 3); },
       [](T x) { return x.slice(0, 3, 6); },
       [](T x) { return x.slice(0, 0, 6, 2); },
       [](T x) { return x.slice(1, 0, 3); }},
      {[](T x) { return x.select(0, 1); }, [](T x) { return x.select(0, 2); }},
      {[](T x) { return x.roll(1, 0); },
       [](T x) { return x.roll(2, 0); },
       [](T x) { return x.roll(1, 1); }},
      {[](T x) { return x.flip(0); }, [](T x) { return x.flip(1); }},
      {[](T x) { return x.view({36}); }, [](T x) { return x.view({2, 18}); }},
      {[](T x) { return x.softmax(0); }, [](T x) { return x.softmax(1); }},
      {[](T x) { return x.cumsum(0); }, [](T x) { return x.cumsum(1); }},
      {[](T x) { return at::constant_pad_nd(x, {1, 1}, 0); },
       [](T x) { return at::constant_pad_nd(x, {1, 1}, 3); },
       [](T x) { return at::constant_pad_nd(x, {0, 2}, 0); }},
      {[](T x) { return x.tril(0); }, [](T x) { return x.tril(1); }},
      {[](T x) { return x.clamp(-1, 1); },
       [](T x) { return x.clamp(-2, 2); },
       [](T x) { return x.clamp(std::nullopt, 2); },
       [](T x) { return x.clamp(-2, std::nullopt); }},
      {[](T x) { return x.mul(2); },
       [](T x) { return x.mul(3); },
       [](T x) { return x.mul(2.5); }},
      {[](T x) { return x.to(at::kFloat); },
       [](T x) { return x.to(at::kLong); },
       [](T x) { return x.to(at::kBFloat16); }},
      {[](T x) { return at::gelu(x); },
       [](T x) { return at::gelu(x, "tanh"); }},
      {[](T x) { return x.var(0, true); }, [](T x) { return x.var(0, false); }},
      {[](T x) { return x.norm(1); },
       [](T x) { return x.norm(2); },
       [](T x) { return x.norm(3); }},
      {[](T x) { return at::full_like(x, 1); },
       [](T x) { return at::full_like(x, 2); }},
      {[](T x) { return x.new_zeros({6, 6}); },
       [](T x) { return x.new_zeros({3}); }},
      {[](T x) { return std::get<0>(x.topk(2, 0)); },
       [](T x) { return std::get<0>(x.topk(3, 0)); },
       [](T x) { return std::get<0>(x.topk(3, 0, false)); },
       [](T x) { return std::get<1>(x.topk(3, 1)); }},
  };
  return list;
}

TEST(PlanCache, EveryArgumentCounts) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto value = at::randn({6, 6}, at::kDouble);
    for (const auto& layout : {Shard(0), Shard(1), Replicate(), Partial()}) {
      const auto x = laid_out(value, mesh, layout, 5);
      for (size_t f = 0; f < families().size(); ++f) {
        // Twice: on a miss, then from the cache, with the others in between.
        for (int round = 0; round < 2; ++round) {
          for (size_t c = 0; c < families()[f].size(); ++c) {
            SCOPED_TRACE(
                "family " + std::to_string(f) + ", call " + std::to_string(c) +
                ", " + layout.str());
            expect_value(families()[f][c](x), families()[f][c](value));
          }
        }
      }
    }
  });
}

TEST(PlanCache, EveryDtypeAndStrideCounts) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto value = at::arange(24, at::kDouble).view({6, 4});
    for (const auto dtype : {at::kDouble, at::kFloat, at::kLong}) {
      for (const bool transposed : {false, true}) {
        const auto plain = transposed ? value.to(dtype).t() : value.to(dtype);
        const auto x = distribute_tensor(plain, mesh, Shard(0));
        expect_value(x + x, plain + plain);
        expect_value(x.mul(1.5), plain.mul(1.5));
        expect_value(x.reshape({24}), plain.reshape({24}));
        expect_value(x.sum(), plain.sum());
      }
    }
  });
}

TEST(PlanCache, NumbersOfElementwiseOpsAreLeftOut) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(at::randn({6, 6}), mesh, Shard(0), 5);
    const auto run = [&](double number) {
      x.add(number);
      x.mul(number);
      x.add(x, number);
      x.clamp_min(number);
      x.addcmul(x, x, number);
    };
    run(0.5);
    const auto before = PlanCache::local().counts();
    for (int i = 0; i < 100; ++i) {
      run(1.0 + i);
    }
    EXPECT_EQ(PlanCache::local().counts().misses, before.misses);
    EXPECT_GT(PlanCache::local().counts().hits, before.hits);
    // A number of another kind may change the dtype.
    x.add(3);
    EXPECT_GT(PlanCache::local().counts().misses, before.misses);
  });
}

TEST(PlanCache, ASecondCallHits) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(at::randn({6, 6}), mesh, Shard(0), 5);
    const auto run = [&] {
      const auto y = at::mm(x, x.t()).view({36}).relu();
      at::cat({y, y}).sum().add_(1);
    };
    run();
    const auto before = PlanCache::local().counts();
    run();
    EXPECT_EQ(PlanCache::local().counts().misses, before.misses);
  });
}

// A server that sees a new length at every call does not grow.
TEST(PlanCache, IsBounded) {
  on_four_ranks([](const DeviceMesh& mesh) {
    constexpr size_t kPlans = PlanCache::kSets * PlanCache::kWays;
    const auto run = [&](int64_t length) {
      const auto x = zeros({length}, mesh, Shard(0));
      at::sum(x + x);
    };
    size_t most = 0;
    for (int64_t length = 1; length <= 10000; ++length) {
      run(length);
      if (length % 500 == 0) {
        most = std::max(most, live_spec_count());
      }
    }
    // A plan names its inputs and its outputs.
    EXPECT_LT(most, 4 * kPlans);
  });
}

}  // namespace cache_test
}  // namespace tessera
