// embedding_bag on a ShardedTensor, option by option, against at::embedding_bag
// on one device.
#include <gtest/gtest.h>

#include "testing/throws.h"
#include "tests/api/sharded_cases.h"

namespace ts = tessera;
using ts::BagStrategy;
using ts::sharded::BagInput;
using ts::sharded::EmbeddingBagFuncOptions;
using ts::sharded::RowSgd;
using ts::testing::bags_of;
using ts::testing::exact_values;
using ts::testing::expect_bags_as_on_one_device;
using ts::testing::living_here;
using ts::testing::outside;
using ts::testing::ShardedCase;
using ts::testing::test_world;
using ts::testing::with_mesh;

namespace sharded_bag_test {

// Four ranks with 2, 0, 1 and 3 bags over a table of 9 rows.
std::vector<BagInput> four_inputs(bool include_last_offset = false) {
  return {
      bags_of({{0, 8, 3, 3}, {7}}, include_last_offset),
      bags_of({}, include_last_offset),
      bags_of({{4, 4, 1}}, include_last_offset),
      bags_of({{}, {2, 6, 5, 0, 8}, {3}}, include_last_offset)};
}

ShardedCase case_of(
    int64_t dim,
    const std::string& mode,
    BagStrategy strategy = BagStrategy::Cheapest) {
  ShardedCase c;
  c.table = exact_values({9, 6}, at::kFloat, 3);
  c.dim = dim;
  c.inputs = four_inputs();
  c.options.mode = mode;
  c.options.strategy = strategy;
  return c;
}

// Runs a change of the plain case in each mode, layout and strategy.
void for_each_case(const std::function<void(ShardedCase&)>& change) {
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const auto* mode : {"sum", "mean", "max"}) {
      for (const int64_t dim : {0, 1}) {
        for (const auto strategy :
             {BagStrategy::Cheapest, BagStrategy::Pooled, BagStrategy::Rows}) {
          auto c = case_of(dim, mode, strategy);
          change(c);
          expect_bags_as_on_one_device(c, mesh);
        }
      }
    }
  }));
}

TEST(ShardedBag, OffsetsAndDifferentNumbersOfBags) {
  for_each_case([](ShardedCase&) {});
}

TEST(ShardedBag, TwoDimensionalInput) {
  for_each_case([](ShardedCase& c) {
    c.inputs = {
        {torch::tensor({{0, 8, 3}, {1, 1, 7}})},
        {torch::zeros({0, 3}, at::kLong)},
        {torch::tensor({{5}})},
        {torch::zeros({2, 0}, at::kLong)}};
  });
}

TEST(ShardedBag, Int32Input) {
  for_each_case([](ShardedCase& c) {
    for (auto& input : c.inputs) {
      input.input = input.input.to(at::kInt);
      input.offsets = input.offsets->to(at::kInt);
    }
  });
}

TEST(ShardedBag, InputThatIsNotContiguous) {
  for_each_case([](ShardedCase& c) {
    for (auto& input : c.inputs) {
      input = {torch::tensor({{0, 8, 3}, {1, 2, 7}}).t()};
    }
  });
}

TEST(ShardedBag, IncludeLastOffset) {
  for_each_case([](ShardedCase& c) {
    c.options.include_last_offset = true;
    c.inputs = four_inputs(true);
  });
}

TEST(ShardedBag, PaddingIndexFromEitherEnd) {
  for (const int64_t padding : {3, 8, 0, -1, -9, -6}) {
    for_each_case([&](ShardedCase& c) { c.options.padding_idx = padding; });
  }
}

TEST(ShardedBag, MaxNormScalesEachRowOnce) {
  for (const double norm_type :
       {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    for_each_case([&](ShardedCase& c) {
      c.options.max_norm = 2.5;
      c.options.norm_type = norm_type;
    });
  }
}

// One device scales the row of padding too, if it is among the entries.
TEST(ShardedBag, MaxNormWithPadding) {
  for (const int64_t padding : {3, 8}) {
    for_each_case([&](ShardedCase& c) {
      c.options.max_norm = 1.0;
      c.options.padding_idx = padding;
    });
  }
}

// Of the one mode that takes them.
void add_weights(ShardedCase& c) {
  if (c.options.mode != "sum") {
    return;
  }
  for (size_t r = 0; r < 4; ++r) {
    c.inputs[r].per_sample_weights =
        exact_values(c.inputs[r].input.sizes(), at::kFloat, 50 + r);
  }
}

TEST(ShardedBag, PerSampleWeightsWithTheirGradient) {
  for_each_case(add_weights);
}

TEST(ShardedBag, PerSampleWeightsAndPadding) {
  for_each_case([](ShardedCase& c) {
    c.options.padding_idx = 3;
    add_weights(c);
  });
}

TEST(ShardedBag, EveryDtype) {
  for (const auto dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
    for_each_case([&](ShardedCase& c) { c.table = c.table.to(dtype); });
  }
}

TEST(ShardedBag, PlacementsThatPermuteTheRanks) {
  for_each_case([](ShardedCase& c) { c.order = {2, 0, 3, 1}; });
}

TEST(ShardedBag, FewerRowsAndColumnsThanRanks) {
  for (const int64_t rows : {1, 2, 5}) {
    for_each_case([&](ShardedCase& c) {
      c.table = exact_values({rows, 3}, at::kFloat, 5);
      for (auto& input : c.inputs) {
        input.input = input.input.remainder(rows);
      }
    });
  }
}

TEST(ShardedBag, NobodyHasAnyBag) {
  for_each_case([](ShardedCase& c) {
    for (auto& input : c.inputs) {
      input = bags_of({});
    }
  });
}

TEST(ShardedBag, OneRankAlone) {
  ASSERT_TRUE(with_mesh({1}, [&](const ts::DeviceMesh& mesh) {
    for (const auto* mode : {"sum", "mean", "max"}) {
      auto c = case_of(0, mode);
      c.inputs.resize(1);
      expect_bags_as_on_one_device(c, mesh);
      c.dim = 1;
      expect_bags_as_on_one_device(c, mesh);
    }
  }));
}

// Bags of more than 255 entries: their argmax do not fit in a byte.
TEST(ShardedBag, LongBags) {
  for (const int64_t length : {255, 256, 700}) {
    for_each_case([&](ShardedCase& c) {
      for (size_t r = 0; r < 4; ++r) {
        c.inputs[r] = {
            ts::testing::random_indices(9, {2, length}, 60 + r), std::nullopt};
      }
    });
  }
}

// Equal values: the first entry of the bag gets the gradient, whoever owns it.
TEST(ShardedBag, MaxAmongEqualsIsTheFirst) {
  for_each_case([](ShardedCase& c) {
    c.table = torch::ones({9, 6});
    c.inputs = {
        bags_of({{8, 0, 4}}),
        bags_of({{4, 8, 0}, {0, 8}}),
        bags_of({{6, 6, 2, 6}}),
        bags_of({{3, 3}})};
  });
}

// As on one device a NaN counts where it is the bag's first entry, though its
// owner may have it first among its own.
TEST(ShardedBag, NotANumberCountsWhereItIsFirst) {
  for (const bool padded : {false, true}) {
    for_each_case([&](ShardedCase& c) {
      c.table[6].fill_(std::numeric_limits<float>::quiet_NaN());
      c.inputs = {
          bags_of({{0, 6, 7}}),
          bags_of({{6, 0, 7}}),
          bags_of({{0, 6}, {6}}),
          bags_of({{3, 6, 7}, {7, 6, 0}})};
      if (padded) {
        c.options.padding_idx = 0;
      }
    });
  }
}

// Per_sample_weights on only one rank leave the others' entries as they are.
TEST(ShardedBag, PerSampleWeightsOnOneRankAlone) {
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const int64_t dim : {0, 1}) {
      for (const auto strategy : {BagStrategy::Pooled, BagStrategy::Rows}) {
        auto c = case_of(dim, "sum", strategy);
        c.inputs[3].per_sample_weights = exact_values({6}, at::kFloat, 9);
        expect_bags_as_on_one_device(c, mesh);
      }
    }
  }));
}

TEST(ShardedBag, GradientsAddUpOverLookups) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({9, 6}, at::kFloat, 3);
    for (const int64_t dim : {0, 1}) {
      auto weight = ts::ShardedTensor::from_full(
          value, {dim, {0, 1, 2, 3}}, {.same_on_all_ranks = true});
      weight.requires_grad_();
      const auto all = four_inputs();
      std::vector<BagInput> inputs;
      for (const size_t r : living_here(mesh, 4)) {
        inputs.push_back(all[r]);
      }
      for (int64_t pass = 0; pass < 2; ++pass) {
        at::Tensor loss = torch::zeros({});
        for (const auto& bags :
             ts::sharded::embedding_bag(inputs, weight, {.mode = "sum"})) {
          loss = loss + bags.sum();
        }
        loss.backward();
      }
      const auto counts = torch::tensor({2, 1, 1, 3, 2, 1, 1, 1, 2})
                              .mul(2)
                              .to(at::kFloat)
                              .unsqueeze(1)
                              .expand({9, 6});
      EXPECT_TRUE(weight.grad().dtensor().full_tensor().equal(counts));
    }
  }));
}

TEST(ShardedBag, UpdateInsteadOfAGradient) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for_each_case([&](ShardedCase& c) {
      c.table = c.table.to(dtype);
      c.options.update = RowSgd{0.25};
    });
  }
}

TEST(ShardedBag, UpdateAndThePerSampleWeightsGradient) {
  for_each_case([](ShardedCase& c) {
    c.options.update = RowSgd{0.25};
    c.options.padding_idx = 3;
    add_weights(c);
  });
}

// Two lookups of one table in one pass: each makes its own step.
TEST(ShardedBag, UpdatesAddUpOverLookups) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({9, 6}, at::kFloat, 3);
    for (const int64_t dim : {0, 1}) {
      auto weight = ts::ShardedTensor::from_full(
          value, {dim, {0, 1, 2, 3}}, {.same_on_all_ranks = true});
      weight.requires_grad_();
      const auto all = four_inputs();
      std::vector<BagInput> inputs;
      for (const size_t r : living_here(mesh, 4)) {
        inputs.push_back(all[r]);
      }
      const auto version = at::Tensor(weight.dtensor())._version();
      at::Tensor loss = torch::zeros({});
      for (int64_t lookup = 0; lookup < 2; ++lookup) {
        for (const auto& bags : ts::sharded::embedding_bag(
                 inputs, weight, {.mode = "sum", .update = RowSgd{0.5}})) {
          loss = loss + bags.sum();
        }
      }
      loss.backward();
      EXPECT_GT(at::Tensor(weight.dtensor())._version(), version);
      const auto counts = torch::tensor({2, 1, 1, 3, 2, 1, 1, 1, 2})
                              .to(at::kFloat)
                              .unsqueeze(1)
                              .expand({9, 6});
      EXPECT_TRUE(weight.dtensor().full_tensor().equal(value - counts));
    }
  }));
}

// A serving program may pass the options of the training program.
TEST(ShardedBag, NoUpdateWithoutGradients) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({9, 6}, at::kFloat, 3);
    const auto weight = ts::ShardedTensor::from_full(
        value, {0, {0, 1, 2, 3}}, {.same_on_all_ranks = true});
    const auto all = four_inputs();
    std::vector<BagInput> inputs;
    for (const size_t r : living_here(mesh, 4)) {
      inputs.push_back(all[r]);
    }
    const EmbeddingBagFuncOptions options{.update = RowSgd{0.5}};
    {
      const at::NoGradGuard no_grad;
      ts::sharded::embedding_bag(inputs, weight, options);
    }
    EXPECT_TRUE(weight.dtensor().full_tensor().equal(value));
    ts::testing::throws_saying<c10::ValueError>(
        "[embedding_bag] an update needs a weight that requires grad",
        [&] { ts::sharded::embedding_bag(inputs, weight, options); });
  }));
}

TEST(ShardedBag, WithoutGradients) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({9, 6}, at::kFloat, 3);
    const auto weight = ts::ShardedTensor::from_full(
        value, {0, {0, 1, 2, 3}}, {.same_on_all_ranks = true});
    const auto all = four_inputs();
    std::vector<BagInput> inputs;
    for (const size_t r : living_here(mesh, 4)) {
      inputs.push_back(all[r]);
    }
    for (const auto& bags : ts::sharded::embedding_bag(inputs, weight)) {
      EXPECT_FALSE(bags.requires_grad());
    }
  }));
}

// A table that was written between the passes cannot tell what the
// per_sample_weights' gradients were; it must say so.
TEST(ShardedBag, TableWrittenBeforeThePerSampleWeightsGradient) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const int64_t dim : {0, 1}) {
      auto weight = ts::ShardedTensor::from_full(
          exact_values({9, 6}, at::kFloat, 3),
          {dim, {0, 1, 2, 3}},
          {.same_on_all_ranks = true});
      weight.requires_grad_();
      const auto all = four_inputs();
      std::vector<BagInput> inputs;
      for (const size_t r : living_here(mesh, 4)) {
        inputs.push_back(all[r]);
        inputs.back().per_sample_weights =
            torch::ones(all[r].input.sizes()).requires_grad_();
      }
      at::Tensor loss = torch::zeros({});
      for (const auto& bags :
           ts::sharded::embedding_bag(inputs, weight, {.mode = "sum"})) {
        loss = loss + bags.sum();
      }
      {
        const at::NoGradGuard no_grad;
        weight.dtensor().mul_(2);
      }
      ts::testing::throws_saying<c10::Error>(
          "modified by an inplace operation", [&] { loss.backward(); });
    }
  }));
}

// Over processes: one input, the rank's own.
TEST(ShardedBag, OneInputOfThisRank) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({9, 6}, at::kFloat, 3);
    const auto weight = ts::ShardedTensor::from_full(
        value, {0, {0, 1, 2, 3}}, {.same_on_all_ranks = true});
    const auto input = torch::tensor({{0, 8}, {3, 4}});
    if (mesh.simulated()) {
      ts::testing::throws_saying<c10::Error>(
          "[embedding_bag] all ranks live in this process: give a list",
          [&] { ts::sharded::embedding_bag(input, weight); });
      ts::testing::throws_saying<c10::Error>(
          "[embedding] all ranks live in this process: give a list",
          [&] { ts::sharded::embedding(input, weight); });
      return;
    }
    const auto mine = input + test_world().rank() % 2;
    const auto wanted = mine.clamp_max(8);
    EXPECT_TRUE(ts::sharded::embedding_bag(wanted, weight)
                    .equal(std::get<0>(torch::embedding_bag(
                        value,
                        wanted.reshape({-1}),
                        torch::tensor({0, 2}),
                        false,
                        1))));
    EXPECT_TRUE(ts::sharded::embedding(wanted, weight)
                    .equal(at::embedding(value, wanted)));
  }));
}

}  // namespace sharded_bag_test
