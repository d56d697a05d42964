// Bags of rows on distributed tensors, through the functions that users call,
// beside the same on one device: every mode, every layout of table and indices.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "testing/throws.h"
#include "tests/api/embedding_bag_cases.h"

namespace ts = tessera;
namespace F = torch::nn::functional;
using ts::Replicate;
using ts::Shard;
using ts::testing::bag_failure;
using ts::testing::BagCase;
using ts::testing::data_of;
using ts::testing::difference;
using ts::testing::Mode;
using ts::testing::outside;
using ts::testing::parameter;
using ts::testing::placed;
using ts::testing::replicated;
using ts::testing::throws_saying;
using ts::testing::with_mesh;

namespace embedding_bag_test {

const std::vector<int64_t> kRowsOfThree(8, 3);
// 2 and 4 ranks cut these between bags, of which some are empty.
const std::vector<int64_t> kEvenQuarters{1, 3, 0, 4, 3, 1, 0, 4};

std::vector<BagCase> cases() {
  std::vector<BagCase> all;
  for (const Mode mode : {Mode::Sum, Mode::Mean, Mode::Max}) {
    for (const bool by_offsets : {true, false}) {
      BagCase c{.mode = mode, .by_offsets = by_offsets};
      if (!by_offsets) {
        c.lengths = kRowsOfThree;
      }
      all.push_back(c);
      all.push_back(c);
      all.back().padding_idx = 2;
      if (mode != Mode::Max) {
        all.push_back(c);
        all.back().sparse = true;
      }
    }
    all.push_back({.mode = mode, .include_last_offset = true});
    all.push_back({.mode = mode, .lengths = kEvenQuarters});
    all.push_back(
        {.mode = mode, .lengths = kEvenQuarters, .include_last_offset = true});
  }
  all.push_back({.weighted = true});
  all.push_back({.weighted = true, .padding_idx = -3});
  all.push_back(
      {.lengths = kRowsOfThree,
       .by_offsets = false,
       .weighted = true,
       .padding_idx = 4});
  all.push_back({.lengths = kEvenQuarters, .weighted = true});
  // More ranks than bags.
  all.push_back({.lengths = {3, 3}, .by_offsets = false});
  // The last two entries are nobody's.
  all.push_back(
      {.lengths = {1, 3, 0, 4, 3, 1, 0, 2},
       .include_last_offset = true,
       .trailing = 2});
  return all;
}

// By every strategy that a call can take.
void expect_as_on_one_device(BagCase c, const ts::DeviceMesh& mesh) {
  EXPECT_EQ(bag_failure(c, mesh), "");
  c.strategies.strategy = ts::LookupStrategy::Gather;
  EXPECT_EQ(bag_failure(c, mesh), "");
  c.strategies.strategy = ts::LookupStrategy::Exchange;
  for (const auto strategy : {ts::BagStrategy::Pooled, ts::BagStrategy::Rows}) {
    c.strategies.bag_strategy = strategy;
    EXPECT_EQ(bag_failure(c, mesh), "");
  }
}

TEST(EmbeddingBag, EveryLayoutOnOneMeshDimension) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    with_mesh({ranks}, [](const ts::DeviceMesh& mesh) {
      for (auto c : cases()) {
        for (const auto& table : {Replicate(), Shard(0), Shard(1)}) {
          for (const auto& batch : {Replicate(), Shard(0)}) {
            c.table = {table};
            c.batch = {batch};
            expect_as_on_one_device(c, mesh);
          }
        }
      }
    });
  }
}

TEST(EmbeddingBag, EveryLayoutOnTwo) {
  with_mesh({2, 2}, [](const ts::DeviceMesh& mesh) {
    for (auto c : cases()) {
      for (const auto& table : ts::testing::layouts(mesh, 2)) {
        for (const auto& batch : ts::testing::layouts(mesh, 1)) {
          c.table = table;
          c.batch = batch;
          expect_as_on_one_device(c, mesh);
        }
      }
    }
  });
}

TEST(EmbeddingBag, ReplicatedIndicesSendNothing) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const BagCase c;
    const auto data = data_of(c);
    for (const auto& table : {Replicate(), Shard(0), Shard(1)}) {
      const auto weight = parameter(data.weight, mesh, {table});
      const ts::CommDebugMode comm;
      const auto bags = F::embedding_bag(
          replicated(data.indices, mesh),
          weight,
          c.options(replicated(data.offsets, mesh), {}));
      bags.backward(replicated(data.grad, mesh));
      EXPECT_EQ(comm.get_total_counts(), 0) << comm;
    }
  });
}

// Batches of whole bags over a replicated table stay where they are.
TEST(EmbeddingBag, BatchesOfWholeBagsAreNotGathered) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const BagCase c{.lengths = kRowsOfThree, .by_offsets = false};
    const auto data = data_of(c);
    const ts::CommDebugMode comm;
    const auto bags = F::embedding_bag(
        placed(data.indices, mesh, {Shard(0)}),
        replicated(data.weight, mesh),
        c.options({}, {}));
    EXPECT_EQ(ts::DTensor(bags).placements()[0], Shard(0));
    const std::map<std::string, int64_t> agreed{{"agree", 1}};
    EXPECT_EQ(comm.get_comm_counts(), agreed) << comm;
  });
}

struct Sent {
  int64_t bytes = 0;
  std::map<std::string, int64_t> calls;
};

// What a forward pass of batches over a row-wise sharded table sends.
Sent forward_of_batches(
    const ts::DeviceMesh& mesh,
    const at::Tensor& indices,
    const ts::EmbeddingOptions& options) {
  const ts::EmbeddingScope scope(options);
  const auto weight = placed(at::ones({400, 32}, at::kFloat), mesh, {Shard(0)});
  const auto batch = placed(indices, mesh, {Shard(0)});
  const ts::CommDebugMode comm;
  const auto bags = F::embedding_bag(
      batch, weight, BagCase{.by_offsets = false}.options({}, {}));
  EXPECT_EQ(ts::DTensor(bags).placements()[0], Shard(0));
  return {comm.get_total_bytes(), comm.get_comm_counts()};
}

TEST(EmbeddingBag, BatchesGoToTheOwnersOfTheirRows) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto generator = at::detail::createCPUGenerator(5);
    const auto far = torch::randint(0, 400, {1024, 20}, generator, at::kLong);
    // Row r of the batch is looked up in the part of the table that is there.
    const auto near =
        far.remainder(100) +
        at::arange(1024, at::kLong).div(256, "floor").mul(100).unsqueeze(1);
    const ts::EmbeddingOptions gather{.strategy = ts::LookupStrategy::Gather};
    const ts::EmbeddingOptions pooled{
        .strategy = ts::LookupStrategy::Exchange,
        .bag_strategy = ts::BagStrategy::Pooled};
    const ts::EmbeddingOptions rows{
        .strategy = ts::LookupStrategy::Exchange,
        .bag_strategy = ts::BagStrategy::Rows};
    const auto by_gather = forward_of_batches(mesh, far, gather);
    const auto by_pooled = forward_of_batches(mesh, far, pooled);
    const auto by_rows = forward_of_batches(mesh, far, rows);
    const auto cheapest = forward_of_batches(mesh, far, {});
    const auto at_home = forward_of_batches(mesh, near, {});
    if (outside(mesh)) {
      return;
    }
    const std::map<std::string, int64_t> exchange{{"all_to_all_rows", 3}};
    EXPECT_EQ(by_gather.calls.count("all_gather"), 1);
    EXPECT_EQ(by_pooled.calls, exchange);
    EXPECT_EQ(by_rows.calls, exchange);
    EXPECT_EQ(cheapest.calls, exchange);
    EXPECT_LT(by_pooled.bytes, by_gather.bytes);
    // At most 300 different rows are far, and 256 bags have entries of 3
    // others.
    EXPECT_LT(by_rows.bytes, by_pooled.bytes);
    EXPECT_EQ(cheapest.bytes, by_rows.bytes);
    // The handshake only.
    EXPECT_EQ(at_home.bytes, 72 * 3);
    const std::map<std::string, int64_t> handshake{{"all_to_all_rows", 1}};
    EXPECT_EQ(at_home.calls, handshake);
  });
}

// The formulas of docs/embedding_bags.md.
TEST(EmbeddingBag, GatheredBatchesSendWhatTheFormulasSay) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    if (outside(mesh)) {
      return;
    }
    const ts::EmbeddingScope scope({.strategy = ts::LookupStrategy::Gather});
    const int64_t others = 3, size = 8, bags = 2, entries = 6, columns = 6;
    for (const Mode mode : {Mode::Sum, Mode::Mean, Mode::Max}) {
      for (const bool weighted : {false, true}) {
        if (weighted && mode != Mode::Sum) {
          continue;
        }
        const BagCase c{
            .mode = mode,
            .lengths = kRowsOfThree,
            .by_offsets = false,
            .weighted = weighted};
        const auto data = data_of(c);
        const auto weight = parameter(data.weight, mesh, {Shard(0)});
        const auto per_sample_weights =
            parameter(data.per_sample_weights, mesh, {Shard(0)});
        const auto indices = placed(data.indices, mesh, {Shard(0)});
        const auto grad = placed(data.grad, mesh, {Shard(0)});
        const int64_t result = size * columns * bags;
        const int64_t of_weights = weighted ? size * entries : 0;
        at::Tensor pooled;
        {
          const ts::CommDebugMode comm;
          pooled = F::embedding_bag(
              indices, weight, c.options({}, per_sample_weights));
          const int64_t results =
              mode == Mode::Max ? 2 * (size + 4) * columns * bags : result;
          EXPECT_EQ(
              comm.get_total_bytes(),
              others * (size * entries + of_weights + results))
              << c.str() << "\n"
              << comm;
        }
        const ts::CommDebugMode comm;
        pooled.backward(grad);
        EXPECT_EQ(comm.get_total_bytes(), others * (result + of_weights))
            << c.str() << "\n"
            << comm;
      }
    }
  });
}

TEST(EmbeddingBag, FewIndicesAreGathered) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto few = at::arange(8, at::kLong).view({4, 2});
    const auto sent = forward_of_batches(mesh, few, {});
    if (!outside(mesh)) {
      EXPECT_EQ(sent.calls.count("all_to_all_rows"), 0);
    }
  });
}

TEST(EmbeddingBag, ModuleTrainsAsOnOneDevice) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto data = data_of({});
    const auto options =
        torch::nn::EmbeddingBagOptions(10, 6).mode(torch::kMean).padding_idx(1);
    const auto step = [&](torch::nn::EmbeddingBag& module,
                          const at::Tensor& indices,
                          const at::Tensor& offsets) {
      torch::optim::SGD optimizer(module->parameters(), 0.1);
      module->forward(indices, offsets).pow(2).sum().backward();
      optimizer.step();
    };
    torch::nn::EmbeddingBag plain(options);
    torch::nn::EmbeddingBag sharded(options);
    {
      const torch::NoGradGuard no_grad;
      plain->weight.copy_(data.weight);
      sharded->weight.copy_(data.weight);
    }
    ts::distribute_(sharded->weight, mesh, {Shard(0)});
    step(plain, data.indices, data.offsets);
    step(
        sharded,
        replicated(data.indices, mesh),
        replicated(data.offsets, mesh));
    const auto full = ts::DTensor(sharded->weight.detach()).full_tensor();
    if (!outside(mesh)) {
      EXPECT_EQ(difference(full, plain->weight.detach()), "");
    }
  });
}

TEST(EmbeddingBag, Refusals) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto data = data_of({});
    const auto weight = placed(data.weight, mesh, {Shard(0)});
    const auto indices = replicated(data.indices, mesh);
    const auto offsets = replicated(data.offsets, mesh);
    throws_saying<c10::NotImplementedError>(
        "scale_grad_by_freq is not supported",
        [&] { at::embedding_bag(weight, indices, offsets, true); });
    throws_saying<c10::IndexError>(
        "[embedding_bag] index 10 is outside the table of 10 rows",
        [&] { at::embedding_bag(weight, indices * 0 + 10, offsets); });
    throws_saying<c10::Error>("is a plain tensor of shape", [&] {
      at::embedding_bag(weight, data.indices, offsets);
    });
    throws_saying<c10::Error>("is a plain tensor of shape", [&] {
      at::embedding_bag(data.weight, data.indices, offsets);
    });
  });
}

// Every rank checks the offsets of its own bags, and all are told.
TEST(EmbeddingBag, BatchesWithBadOffsetsOrFactorsAreRefused) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    if (outside(mesh)) {
      return;
    }
    const BagCase c{.lengths = kEvenQuarters};
    const auto data = data_of(c);
    const auto weight = placed(data.weight, mesh, {Shard(0)});
    const auto indices = placed(data.indices, mesh, {Shard(0)});
    const auto per_sample_weights =
        placed(data.per_sample_weights, mesh, {Shard(0)});
    auto descending = data.offsets.clone();
    descending[3] = 9;  // of the second rank
    for (const auto strategy :
         {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
      const ts::EmbeddingScope scope({.strategy = strategy});
      throws_saying<c10::ValueError>("offsets must not decrease", [&] {
        at::embedding_bag(weight, indices, replicated(descending, mesh));
      });
      throws_saying<c10::TypeError>("must have the table's dtype", [&] {
        at::embedding_bag(
            weight,
            indices,
            replicated(data.offsets, mesh),
            false,
            0,
            false,
            per_sample_weights.to(at::kFloat));
      });
    }
  });
}

TEST(EmbeddingBag, ArgumentsOnDifferentMeshesAreRefused) {
  with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const BagCase c{.lengths = kEvenQuarters};
    const auto data = data_of(c);
    const auto other = ts::init_device_mesh("cpu", {2, 2});
    throws_saying<c10::ValueError>("arguments live on different meshes", [&] {
      at::embedding_bag(
          placed(data.weight, mesh, {Shard(0)}),
          placed(data.indices, other, {Replicate(), Shard(0)}),
          replicated(data.offsets, mesh));
    });
  });
}

}  // namespace embedding_bag_test
