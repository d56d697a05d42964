// The stream of random numbers used to be a state of the library's own, which
// nobody saved: a checkpointed dropout drew another mask when it was computed
// again, and its gradients were wrong.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace random_state_test {

at::Tensor rng_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_rng_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

struct Draw {
  const char* name;
  std::function<at::Tensor(const at::Tensor&)> run;
};

// Every op that draws, of a tensor of positive numbers.
const std::vector<Draw>& draws() {
  using T = const at::Tensor&;
  static const std::vector<Draw> list{
      {"uniform_", [](T x) { return at::empty_like(x).uniform_(1, 3); }},
      {"normal_", [](T x) { return at::empty_like(x).normal_(); }},
      {"log_normal_", [](T x) { return at::empty_like(x).log_normal_(); }},
      {"cauchy_", [](T x) { return at::empty_like(x).cauchy_(); }},
      {"exponential_", [](T x) { return at::empty_like(x).exponential_(); }},
      {"geometric_", [](T x) { return at::empty_like(x).geometric_(0.3); }},
      {"bernoulli_", [](T x) { return at::empty_like(x).bernoulli_(0.3); }},
      {"bernoulli_ by tensor",
       [](T x) { return at::empty_like(x).bernoulli_(x / 100); }},
      {"bernoulli", [](T x) { return at::bernoulli(x / 100); }},
      {"bernoulli.p", [](T x) { return at::bernoulli(x, 0.4); }},
      {"random_", [](T x) { return at::empty_like(x).random_(3, 1000); }},
      {"rand_like", [](T x) { return at::rand_like(x); }},
      {"randn_like", [](T x) { return at::randn_like(x); }},
      {"randint_like", [](T x) { return at::randint_like(x, 1000); }},
      {"randint_like from", [](T x) { return at::randint_like(x, 5, 1000); }},
      {"normal by tensors", [](T x) { return at::normal(x, x); }},
      {"normal by a mean", [](T x) { return at::normal(x, 2.0); }},
      {"normal by a deviation", [](T x) { return at::normal(2.0, x); }},
      {"dropout", [](T x) { return at::dropout(x, 0.3, true); }},
      {"native_dropout",
       [](T x) { return std::get<0>(at::native_dropout(x, 0.3, true)); }},
      {"feature_dropout",
       [](T x) { return at::feature_dropout(x, 0.3, true); }},
      {"alpha_dropout", [](T x) { return at::alpha_dropout(x, 0.3, true); }},
      {"rrelu", [](T x) { return at::rrelu(x - 50, 0.1, 0.3, true); }},
      {"multinomial", [](T x) { return at::multinomial(x, 2); }},
      {"multinomial with replacement",
       [](T x) { return at::multinomial(x, 3, true); }},
  };
  return list;
}

at::Tensor positive_on(
    const ts::DeviceMesh& mesh, const ts::Placement& layout) {
  return ts::distribute_tensor(
      torch::arange(1, 61, torch::kDouble).view({12, 5}),
      mesh,
      ts::Placements(mesh.ndim(), layout),
      {.same_on_all_ranks = true});
}

at::Tensor whole(const at::Tensor& tensor) {
  return ts::DTensor(tensor.detach()).full_tensor();
}

TEST(RandomState, IsPartOfTheDefaultGenerators) {
  const auto generator = at::detail::getDefaultCPUGenerator();
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    const auto x = positive_on(mesh, ts::Shard(0));
    for (const auto& [name, run] : draws()) {
      SCOPED_TRACE(name);
      torch::manual_seed(11);
      const auto state = rng_state(generator);
      const auto first = whole(run(x));
      EXPECT_FALSE(rng_state(generator).equal(state)) << "nothing was drawn";
      const auto second = whole(run(x));
      set_rng_state(generator, state);
      const auto again = whole(run(x));
      torch::manual_seed(11);
      const auto reseeded = whole(run(x));
      const auto second_again = whole(run(x));
      if (!ts::testing::outside(mesh)) {
        EXPECT_TRUE(again.equal(first));
        EXPECT_TRUE(reseeded.equal(first));
        EXPECT_TRUE(second_again.equal(second));
        EXPECT_FALSE(second.equal(first));
      }
    }
  });
}

TEST(RandomState, LayoutsDoNotMatter) {
  for (const auto& [name, run] : draws()) {
    SCOPED_TRACE(name);
    at::Tensor wanted;
    ts::testing::for_each_mesh([&, &run = run](const ts::DeviceMesh& mesh) {
      for (const auto& layout : {ts::Replicate(), ts::Shard(0), ts::Shard(1)}) {
        torch::manual_seed(3);
        const auto result = run(positive_on(mesh, layout));
        const auto value = whole(result);
        if (ts::testing::outside(mesh)) {
          continue;
        }
        wanted = wanted.defined() ? wanted : value;
        EXPECT_TRUE(value.allclose(wanted)) << layout.str();
        for (const auto& shard : ts::DTensor(result).shards()) {
          if (layout.is_replicate()) {
            EXPECT_TRUE(shard.equal(value)) << "replicas differ";
          }
        }
      }
    });
  }
}

// Plain and distributed draws take turns on one generator.
TEST(RandomState, AResumedRunDrawsOn) {
  const auto generator = at::detail::getDefaultCPUGenerator();
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    const auto run = [&] {
      const auto plain = torch::rand({3});
      const auto x = ts::rand({5, 3}, mesh, {});
      const auto y = at::dropout(ts::ones({6}, mesh, {}), 0.5, true);
      return torch::cat({plain, whole(x).flatten(), whole(y)});
    };
    torch::manual_seed(1);
    run();
    const auto saved = rng_state(generator);
    const auto uninterrupted = run();
    torch::manual_seed(2);  // another process, say
    set_rng_state(generator, saved);
    EXPECT_TRUE(run().equal(uninterrupted));
  });
}

TEST(RandomState, AGeneratorOfOnesOwnIsDrawnFrom) {
  const auto defaults = at::detail::getDefaultCPUGenerator();
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    const auto before = rng_state(defaults);
    const auto run = [&](uint64_t seed) {
      const auto own = at::make_generator<at::CPUGeneratorImpl>(seed);
      auto x = ts::zeros({6}, mesh, ts::Placements(mesh.ndim(), ts::Shard(0)));
      x.uniform_(0, 1, own);
      x.add_(at::bernoulli(x, own));
      return whole(x);
    };
    const auto first = run(4);
    EXPECT_TRUE(run(4).equal(first));
    if (!ts::testing::outside(mesh)) {
      EXPECT_FALSE(run(5).equal(first));
    } else {
      run(5);
    }
    EXPECT_TRUE(rng_state(defaults).equal(before));
  });
}

// As one device does not: an inactive dropout.
TEST(RandomState, WhatIsNotRandomDrawsNothing) {
  const auto generator = at::detail::getDefaultCPUGenerator();
  ts::testing::for_each_mesh([&](const ts::DeviceMesh& mesh) {
    const auto x = positive_on(mesh, ts::Shard(0));
    const auto before = rng_state(generator);
    at::dropout(x, 0.5, false);
    at::native_dropout(x, 0.5, false);
    at::rrelu(x, 0.1, 0.3, false);
    const auto none = ts::zeros({0}, mesh);
    none.uniform_();
    EXPECT_TRUE(rng_state(generator).equal(before));
  });
}

}  // namespace random_state_test
