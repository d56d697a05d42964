// Only one rank has a bad input, or other options: every rank gets the same
// error, none is left waiting, and the next lookup works. Run as processes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>

#include "tessera/tessera.h"
#include "testing/processes.h"
#include "testing/throws.h"

namespace ts = tessera;
using ts::sharded::EmbeddingBagFuncOptions;
using ts::testing::throws_saying;

namespace sharded_bad_input_test {

constexpr int64_t kRows = 9;

class ShardedBadInput : public ts::testing::FourProcesses {
 protected:
  // `call(weight, bad)` for a rank that has the bad input, or has not. Each
  // rank in turn has it.
  template <typename Error>
  static void expect_error_everywhere(
      const std::string& text,
      const std::function<void(const ts::ShardedTensor&, bool)>& call) {
    const auto world =
        ts::World::from_environment(1, {std::chrono::seconds(20)});
    const auto value = torch::arange(kRows * 4.0).view({kRows, 4});
    for (const int64_t dim : {0, 1}) {
      auto weight = ts::ShardedTensor::from_full(
          value, {dim, {2, 0, 1, 3}}, {.same_on_all_ranks = true});
      weight.requires_grad_();
      for (int64_t bad_rank = 0; bad_rank < 4; ++bad_rank) {
        throws_saying<Error>(
            text, [&] { call(weight, world.rank() == bad_rank); });
        expect_well(weight, value, world.rank());
      }
    }
  }

  // The next lookup and its gradient, by the same groups.
  static void expect_well(
      const ts::ShardedTensor& weight, const at::Tensor& value, int64_t rank) {
    const auto input = torch::tensor({{1, 8, 3}}).sub(rank % 2);
    const auto bags =
        ts::sharded::embedding_bag(input, weight, {}, {.mode = "sum"});
    EXPECT_TRUE(bags.equal(at::embedding(value, input).sum(1)));
    bags.sum().backward();
    auto table = weight.dtensor();
    const auto grad = weight.grad().dtensor().full_tensor();
    EXPECT_EQ(grad.sum().item<double>(), 4 * 3 * 4);
    table.mutable_grad() = at::Tensor();
  }
};

TEST_F(ShardedBadInput, IndexOutOfRange) {
  for (const int64_t bad : {kRows, int64_t{-3}}) {
    expect_error_everywhere<c10::ValueError>(
        "[embedding_bag] Index out of range in Input " + std::to_string(bad) +
            " 9",
        [&](const auto& weight, bool is_bad) {
          ts::sharded::embedding_bag(
              torch::tensor({{int64_t{1}, is_bad ? bad : int64_t{8}}}), weight);
        });
    expect_error_everywhere<c10::ValueError>(
        "[embedding] Index out of range in Input " + std::to_string(bad) + " 9",
        [&](const auto& weight, bool is_bad) {
          ts::sharded::embedding(
              torch::tensor({int64_t{1}, is_bad ? bad : int64_t{8}}), weight);
        });
  }
}

TEST_F(ShardedBadInput, WithMaxNormNothingIsScaled) {
  const auto world = ts::World::from_environment(1, {std::chrono::seconds(20)});
  const auto value = torch::arange(kRows * 4.0).view({kRows, 4});
  for (const int64_t dim : {0, 1}) {
    const auto weight = ts::ShardedTensor::from_full(
        value, {dim, {0, 1, 2, 3}}, {.same_on_all_ranks = true});
    throws_saying<c10::ValueError>("Index out of range in Input 99 9", [&] {
      ts::sharded::embedding_bag(
          torch::tensor({{1, world.rank() == 2 ? 99 : 8}}),
          weight,
          {},
          {.max_norm = 1});
    });
    EXPECT_TRUE(weight.dtensor().full_tensor().equal(value));
  }
}

TEST_F(ShardedBadInput, TypeOfTheErrorIsTheRanksOwn) {
  expect_error_everywhere<c10::TypeError>(
      "[embedding_bag] input need to be torch.Tensor",
      [](const auto& weight, bool is_bad) {
        ts::sharded::embedding_bag(
            is_bad ? at::Tensor() : torch::tensor({{1}}), weight);
      });
  expect_error_everywhere<c10::Error>(
      "nn.Embedding weight sharded with flag on \"sparse\" not supported!",
      [](const auto& weight, bool is_bad) {
        ts::sharded::embedding_bag(
            torch::tensor({{1}}), weight, {}, {.sparse = is_bad});
      });
  expect_error_everywhere<c10::NotImplementedError>(
      "per_sample_weights are supported only for mode sum",
      [](const auto& weight, bool is_bad) {
        EmbeddingBagFuncOptions options;
        if (is_bad) {
          options.per_sample_weights = torch::ones({1, 1});
        }
        ts::sharded::embedding_bag(torch::tensor({{1}}), weight, {}, options);
      });
}

TEST_F(ShardedBadInput, ModeOfOneRankAlone) {
  expect_error_everywhere<c10::ValueError>(
      "mode 'median' is not supported", [](const auto& weight, bool is_bad) {
        ts::sharded::embedding_bag(
            torch::tensor({{1}}),
            weight,
            {},
            {.mode = is_bad ? "median" : "sum"});
      });
}

TEST_F(ShardedBadInput, OptionsThatDiffer) {
  const auto expect_refused = [](const EmbeddingBagFuncOptions& other) {
    expect_error_everywhere<c10::ValueError>(
        "[embedding_bag] the ranks were given different options",
        [&](const auto& weight, bool is_bad) {
          ts::sharded::embedding_bag(
              torch::tensor({{1, 8}}),
              weight,
              {},
              is_bad ? other : EmbeddingBagFuncOptions{});
        });
  };
  expect_refused({.mode = "sum"});
  expect_refused({.padding_idx = 3});
  expect_refused({.max_norm = 1});
  expect_refused({.norm_type = 1});
  expect_refused({.strategy = ts::BagStrategy::Rows});
  expect_refused({.update = ts::sharded::RowSgd{0.1}});
}

// It would wait in its backward pass for the others, which have none.
TEST_F(ShardedBadInput, GradientsOnOneRankAlone) {
  expect_error_everywhere<c10::ValueError>(
      "[embedding_bag] some ranks' results require grad and others' do not",
      [](const auto& weight, bool is_bad) {
        const ts::ShardedTensor frozen(weight.dtensor().detach());
        ts::sharded::embedding_bag(
            torch::tensor({{1, 8}}),
            frozen,
            {},
            {.mode = "sum",
             .per_sample_weights = torch::ones({1, 2}).requires_grad_(is_bad)});
      });
}

// A rank that holds no shard is told so, and the others go on without it.
TEST_F(ShardedBadInput, RankWithoutAShard) {
  const auto world = ts::World::from_environment(1, {std::chrono::seconds(20)});
  const auto value = torch::arange(kRows * 4.0).view({kRows, 4});
  const auto weight = ts::ShardedTensor::from_full(
      value, {0, {0, 1, 3}}, {.same_on_all_ranks = true});
  const auto input = torch::tensor({{1, 8}, {2, 4}});
  if (world.rank() == 2) {
    throws_saying<c10::ValueError>("Only one local shard supported!", [&] {
      ts::sharded::embedding_bag(input, weight);
    });
  } else {
    EXPECT_TRUE(ts::sharded::embedding_bag(input, weight)
                    .equal(at::embedding(value, input).mean(1)));
  }
}

}  // namespace sharded_bad_input_test
