// What the functions on ShardedTensors refuse: every text with its type, on
// every rank.
#include <gtest/gtest.h>

#include "testing/throws.h"
#include "tests/api/sharded_cases.h"

namespace ts = tessera;
using ts::sharded::BagInput;
using ts::sharded::EmbeddingBagFuncOptions;
using ts::sharded::EmbeddingFuncOptions;
using ts::testing::bags_of;
using ts::testing::living_here;
using ts::testing::throws_saying;
using ts::testing::with_mesh;

namespace sharded_errors_test {

const ts::DistributeOptions kSame{.same_on_all_ranks = true};

ts::ShardedTensor table_of(int64_t dim) {
  return ts::ShardedTensor::from_full(
      torch::ones({10, 4}), {dim, {0, 1, 2, 3}}, kSame);
}

// `bad` is the input of only one rank; the others have good ones.
std::vector<BagInput> one_bad(
    const ts::DeviceMesh& mesh, const BagInput& bad, size_t bad_rank) {
  std::vector<BagInput> inputs;
  for (const size_t r : living_here(mesh, 4)) {
    inputs.push_back(r == bad_rank ? bad : bags_of({{1, 2}, {9}}, false));
  }
  return inputs;
}

// Every rank throws the text as this type, if one rank's input is bad or if all
// are; nothing is left waiting, and the next lookup works.
template <typename Error>
void refuses(
    const std::string& text,
    const BagInput& bad,
    const EmbeddingBagFuncOptions& options = {}) {
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const int64_t dim : {0, 1}) {
      const auto weight = table_of(dim);
      for (size_t rank = 0; rank < 4; ++rank) {
        throws_saying<Error>("[embedding_bag] " + text, [&] {
          ts::sharded::embedding_bag(one_bad(mesh, bad, rank), weight, options);
        });
      }
      const std::vector<BagInput> all(living_here(mesh, 4).size(), bad);
      throws_saying<Error>("[embedding_bag] " + text, [&] {
        ts::sharded::embedding_bag(all, weight, options);
      });
      for (const auto& bags : ts::sharded::embedding_bag(
               one_bad(mesh, bags_of({{3}}), 0), weight)) {
        EXPECT_TRUE(bags.equal(torch::ones_like(bags)));
      }
    }
  }));
}

TEST(ShardedErrors, RateOfAnUpdate) {
  for (const double lr : {-0.5, std::numeric_limits<double>::infinity()}) {
    refuses<c10::ValueError>(
        "the lr of an update must be finite and not negative",
        bags_of({{1}}),
        {.update = ts::sharded::RowSgd{lr}});
  }
}

TEST(ShardedErrors, InputIsATensor) {
  refuses<c10::TypeError>("input need to be torch.Tensor", BagInput{});
}

TEST(ShardedErrors, OffsetsAreATensor) {
  auto bad = bags_of({{1}});
  bad.offsets = at::Tensor();
  refuses<c10::TypeError>("offsets need to be torch.Tensor", bad);
}

TEST(ShardedErrors, PerSampleWeightsAreATensor) {
  auto bad = bags_of({{1}});
  bad.per_sample_weights = at::Tensor();
  refuses<c10::TypeError>("per_sample_weights need to be torch.Tensor", bad);
}

TEST(ShardedErrors, InputOfMoreThanTwoDimensions) {
  refuses<c10::ValueError>(
      "Input more than 2 dims not supported",
      {torch::zeros({1, 1, 1}, at::kLong)});
}

TEST(ShardedErrors, IndexOutOfRange) {
  refuses<c10::ValueError>(
      "Index out of range in Input 10 10", bags_of({{1, 10}}));
  refuses<c10::ValueError>(
      "Index out of range in Input -2 10", bags_of({{1}, {-2}}));
  auto narrow = bags_of({{1, 77}});
  narrow.input = narrow.input.to(at::kInt);
  refuses<c10::ValueError>("Index out of range in Input 77 10", narrow);
}

TEST(ShardedErrors, OffsetsWithTwoDimensionalInput) {
  refuses<c10::ValueError>(
      "Input dimension needs to be exactly 1 dim",
      {torch::zeros({2, 2}, at::kLong), torch::tensor({0, 1})});
}

TEST(ShardedErrors, OneDimensionalInputWithoutOffsets) {
  refuses<c10::ValueError>(
      "offsets is required for 1D input", {torch::tensor({1, 2})});
}

TEST(ShardedErrors, PerSampleWeightsOfAnotherSize) {
  auto bad = bags_of({{1, 2}});
  bad.per_sample_weights = torch::ones({3});
  refuses<c10::ValueError>(
      "per_sample_weights size [3] not equal to input size [2]",
      bad,
      {.mode = "sum"});
}

TEST(ShardedErrors, ModeThatIsNone) {
  refuses<c10::ValueError>(
      "mode 'median' is not supported", bags_of({{1}}), {.mode = "median"});
}

TEST(ShardedErrors, ScaleByFrequencyAndSparse) {
  refuses<c10::Error>(
      "nn.Embedding weight sharded with flag on \"scale_grad_by_freq\" not "
      "supported!",
      bags_of({{1}}),
      {.scale_grad_by_freq = true});
  refuses<c10::Error>(
      "nn.Embedding weight sharded with flag on \"sparse\" not supported!",
      bags_of({{1}}),
      {.sparse = true});
}

TEST(ShardedErrors, LastOffset) {
  const BagInput square{torch::zeros({2, 2}, at::kLong)};
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const std::vector<BagInput> all(living_here(mesh, 4).size(), square);
    throws_saying<c10::ValueError>(
        "[embedding_bag] offsets is required for flag \"include_last_offset\"!",
        [&] {
          ts::sharded::embedding_bag(
              all, table_of(0), {.include_last_offset = true});
        });
  }));
  // On only one rank: its offsets do not end with the input's size.
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (size_t rank = 0; rank < 4; ++rank) {
      std::vector<BagInput> inputs;
      for (const size_t r : living_here(mesh, 4)) {
        inputs.push_back(bags_of({{1, 2}, {3}}, r != rank));
      }
      throws_saying<c10::ValueError>(
          "[embedding_bag] offsets need to have the input size in the end when "
          "the flag \"include_last_offset\" is on!",
          [&] {
            ts::sharded::embedding_bag(
                inputs, table_of(0), {.include_last_offset = true});
          });
    }
  }));
}

TEST(ShardedErrors, MaxNorm) {
  for (const double norm : {0.0, -1.0}) {
    refuses<c10::ValueError>(
        "\"max_norm\" must be larger than zero!",
        bags_of({{1}}),
        {.max_norm = norm});
  }
}

TEST(ShardedErrors, PaddingOutsideTheTable) {
  for (const int64_t padding : {10, -11}) {
    refuses<c10::ValueError>(
        "padding_idx must be within the 10 rows",
        bags_of({{1}}),
        {.padding_idx = padding});
  }
}

TEST(ShardedErrors, OffsetsThatAreNone) {
  auto bad = bags_of({{1, 2}, {3}});
  bad.offsets = torch::tensor({1, 2});
  refuses<c10::ValueError>("offsets must start at 0", bad);
  bad.offsets = torch::tensor({0, 4});
  refuses<c10::ValueError>(
      "offsets must not decrease and not exceed the number of indices, 3", bad);
  bad.offsets = torch::tensor({0, 2, 1});
  refuses<c10::ValueError>("offsets must not decrease", bad);
  bad.offsets = torch::zeros({0}, at::kLong);
  refuses<c10::ValueError>("offsets must start at 0", bad);
  bad.offsets = torch::zeros({1, 1}, at::kLong);
  refuses<c10::ValueError>("offsets must have 1 dimension", bad);
  bad.offsets = torch::tensor({0.0, 1.0});
  refuses<c10::TypeError>("offsets must be int32 or int64", bad);
}

TEST(ShardedErrors, DtypesOfInputAndPerSampleWeights) {
  refuses<c10::TypeError>(
      "input must be int32 or int64", {torch::ones({2, 2})});
  auto bad = bags_of({{1, 2}});
  bad.per_sample_weights = torch::ones({2}, at::kDouble);
  refuses<c10::TypeError>(
      "per_sample_weights must have the table's dtype", bad, {.mode = "sum"});
  bad.per_sample_weights = torch::ones({2});
  refuses<c10::NotImplementedError>(
      "per_sample_weights are supported only for mode sum", bad);
}

// What is wrong with the table is known without the others.
template <typename Error>
void refuses_table(
    const std::string& text,
    const ts::DeviceMesh& mesh,
    const ts::ShardedTensor& weight) {
  const std::vector<BagInput> bags(living_here(mesh, 4).size(), bags_of({{1}}));
  const std::vector<at::Tensor> rows(bags.size(), torch::tensor({1}));
  ts::CommDebugMode comm;
  throws_saying<Error>("[embedding_bag] " + text, [&] {
    ts::sharded::embedding_bag(bags, weight);
  });
  throws_saying<Error>("[embedding_bag] " + text, [&] {
    ts::sharded::embedding_bag(torch::zeros({1, 1}, at::kLong), weight);
  });
  throws_saying<Error>(
      "[embedding] " + text, [&] { ts::sharded::embedding(rows, weight); });
  EXPECT_EQ(comm.get_total_counts(), 0) << comm;
}

TEST(ShardedErrors, Weight) {
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    refuses_table<c10::TypeError>(
        "weight needs to be ShardedTensor", mesh, ts::ShardedTensor());
    refuses_table<c10::ValueError>(
        "Weight needs to have exactly 2 dims",
        mesh,
        ts::ShardedTensor::from_full(
            torch::ones({10, 4, 2}), {0, {0, 1, 2, 3}}, kSame));
    refuses_table<c10::ValueError>(
        "Only ChunkShardingSpec supported for ShardedTensor ops!",
        mesh,
        ts::ShardedTensor(ts::distribute_tensor(
            torch::ones({10, 4}), mesh, {ts::Replicate()}, kSame)));
    refuses_table<c10::ValueError>(
        "Only one local shard supported!",
        mesh,
        ts::ShardedTensor::from_full(
            torch::ones({10, 4}), {0, {0, 1, 2, 3, 0}}, kSame));
    refuses_table<c10::TypeError>(
        "the weight must be float",
        mesh,
        ts::ShardedTensor::from_full(
            torch::ones({10, 4}, at::kLong), {0, {0, 1, 2, 3}}, kSame));
  }));
}

TEST(ShardedErrors, WeightShardedOnAnotherDim) {
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const auto count = living_here(mesh, 4).size();
    const std::vector<at::Tensor> rows(count, torch::tensor({1}));
    const std::vector<BagInput> bags(count, bags_of({{1}}));
    throws_saying<c10::Error>(
        "nn.EmbeddingBag weight sharded on dim -1 not supported!",
        [&] { ts::sharded::embedding_bag(bags, table_of(-1)); });
    throws_saying<c10::Error>(
        "nn.Embedding weight sharded on dim -2 not supported!",
        [&] { ts::sharded::embedding(rows, table_of(-2)); });
  }));
}

TEST(ShardedErrors, EmbeddingRefusesAlike) {
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const auto here = living_here(mesh, 4);
    const auto with = [&](size_t rank, const at::Tensor& bad) {
      std::vector<at::Tensor> inputs;
      for (const size_t r : here) {
        inputs.push_back(r == rank ? bad : torch::tensor({1, 9}));
      }
      return inputs;
    };
    for (const int64_t dim : {0, 1}) {
      const auto weight = table_of(dim);
      for (size_t rank = 0; rank < 4; ++rank) {
        throws_saying<c10::TypeError>(
            "[embedding] input need to be torch.Tensor",
            [&] { ts::sharded::embedding(with(rank, {}), weight); });
        throws_saying<c10::ValueError>(
            "[embedding] Index out of range in Input 12 10", [&] {
              ts::sharded::embedding(with(rank, torch::tensor({12})), weight);
            });
      }
      const auto good = with(0, torch::tensor({3}));
      throws_saying<c10::Error>(
          "nn.Embedding weight sharded with flag on \"scale_grad_by_freq\" not "
          "supported!",
          [&] {
            ts::sharded::embedding(good, weight, {.scale_grad_by_freq = true});
          });
      throws_saying<c10::Error>(
          "nn.Embedding weight sharded with flag on \"sparse\" not supported!",
          [&] { ts::sharded::embedding(good, weight, {.sparse = true}); });
      throws_saying<c10::ValueError>(
          "\"max_norm\" must be larger than zero!",
          [&] { ts::sharded::embedding(good, weight, {.max_norm = 0}); });
    }
  }));
}

TEST(ShardedErrors, NumberOfInputs) {
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const std::vector<BagInput> inputs(
        living_here(mesh, 4).size() + 1, bags_of({{1}}));
    throws_saying<c10::ValueError>(
        "[embedding_bag] expected an input for each of the",
        [&] { ts::sharded::embedding_bag(inputs, table_of(0)); });
    throws_saying<c10::ValueError>("has per_sample_weights in each", [&] {
      ts::sharded::embedding_bag(
          c10::ArrayRef(inputs).slice(1),
          table_of(0),
          {.mode = "sum", .per_sample_weights = torch::ones({1})});
    });
  }));
}

TEST(ShardedErrors, SecondDerivative) {
  ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    auto weight = table_of(0);
    weight.requires_grad_();
    const std::vector<BagInput> inputs(
        living_here(mesh, 4).size(), bags_of({{1}}));
    const auto bags = ts::sharded::embedding_bag(inputs, weight);
    const auto grad = torch::ones({1, 4}).requires_grad_();
    const auto first = torch::autograd::grad(
        {bags[0]},
        {at::Tensor(weight.dtensor())},
        {grad},
        std::nullopt,
        /*create_graph=*/true)[0];
    // As with plain tensors, who differentiates it again gets the error.
    throws_saying<c10::NotImplementedError>(
        "cannot be differentiated again", [&] { first.sum().backward(); });
  }));
}

}  // namespace sharded_errors_test
