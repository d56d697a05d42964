// The scope in which every collective is one that the program wrote.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace tessera {
namespace explicit_communication_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ExplicitCommunication, NamesOpArgumentStepsAndBytes) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const auto value = torch::arange(32, at::kDouble).view({8, 4});
    const auto x = distribute_tensor(value, mesh, {Shard(0)});
    const auto w = distribute_tensor(value, mesh, {Shard(0)});
    const ExplicitCommunication scope;
    // 2 of 8 rows of 4 doubles a rank.
    EXPECT_THAT(
        testing::error_of([&] { at::mm(x, w.t()); }),
        AllOf(
            HasSubstr("[aten.mm.default] would redistribute argument '"),
            HasSubstr("all_gather("),
            HasSubstr("(64 bytes a rank)"),
            HasSubstr("redistribute(...)")));
    // On gathered inputs too.
    EXPECT_THAT(
        testing::error_of([&] { at::masked_select(x, x > 3); }),
        AllOf(HasSubstr("aten.masked_select"), HasSubstr("all_gather(")));
    const auto whole = w.redistribute({Replicate()});
    const auto y = at::mm(x, whole.t());
    EXPECT_TRUE(DTensor(y).full_tensor().equal(at::mm(value, value.t())));
  });
}

TEST(ExplicitCommunication, RefusesTheExchangeOfALookup) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const auto value = torch::arange(64, at::kFloat).view({16, 4});
    const auto ids = torch::arange(8, at::kLong).mul(3).remainder(16);
    const auto table = distribute_tensor(value, mesh, {Shard(0)});
    const auto batch = distribute_tensor(ids, mesh, {Shard(0)});
    const auto offsets = distribute_tensor(
        torch::arange(0, 8, 2, at::kLong), mesh, {Replicate()});
    const auto refused = [&](const auto& call) {
      const CommDebugMode comm;
      const auto text = testing::error_of([&] {
        const ExplicitCommunication scope;
        call();
      });
      EXPECT_EQ(comm.get_total_counts(), 0);
      return text;
    };
    const auto bags = [&](int64_t mode, const at::Tensor& indices) {
      return std::get<0>(
          at::embedding_bag(table, indices, offsets, false, mode));
    };
    {
      EmbeddingOptions options;
      options.strategy = LookupStrategy::Exchange;
      const EmbeddingScope exchange(options);
      // 2 ids of 8 bytes and 2 rows of 16 a rank.
      EXPECT_THAT(
          refused([&] { at::embedding(table, batch); }),
          AllOf(
              HasSubstr("[aten.embedding.default] would exchange argument "
                        "'indices' ([S(0)]) for rows of 'weight' ([S(0)])"),
              HasSubstr("the strategy Exchange (at most 48 bytes a rank)"),
              HasSubstr("tessera::sharded::embedding")));
      EXPECT_THAT(
          refused([&] { bags(0, batch); }),
          AllOf(
              HasSubstr("[aten._embedding_bag.default] would exchange "
                        "argument 'indices'"),
              HasSubstr("tessera::sharded::embedding_bag")));
    }
    EmbeddingOptions options;
    options.strategy = LookupStrategy::Gather;
    const EmbeddingScope gather(options);
    EXPECT_THAT(
        refused([&] { at::embedding(table, batch); }),
        AllOf(
            HasSubstr("[aten.embedding.default] would redistribute argument "
                      "'indices' from [S(0)] to [R]"),
            HasSubstr("(16 bytes a rank)")));
    EXPECT_THAT(
        refused([&] { bags(1, batch); }),
        HasSubstr("[aten._embedding_bag.default] would redistribute argument "
                  "'indices'"));
    // Maxima of row-wise sharded tables are merged at once; sums stay pending.
    const auto whole = distribute_tensor(ids, mesh, {Replicate()});
    EXPECT_THAT(
        refused([&] { bags(2, whole); }),
        HasSubstr("merge the maxima of each rank's rows of 'weight'"));
    EXPECT_EQ(refused([&] { bags(0, whole); }), "");
    EXPECT_EQ(refused([&] { at::embedding(table, whole); }), "");
    EXPECT_THAT(
        refused([&] { at::nonzero(table); }),
        HasSubstr("[aten.nonzero.default] would redistribute argument 'self'"));
  });
}

TEST(ExplicitCommunication, LetsFunctionsThatExchangeRun) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const auto value = torch::arange(64, at::kFloat).view({16, 4});
    const ShardedTensor table(distribute_tensor(value, mesh, {Shard(0)}));
    std::vector<at::Tensor> ids;
    for (size_t i = 0; i < mesh.local_positions().size(); ++i) {
      ids.push_back(torch::tensor({3, 7, 3}, at::kLong));
    }
    const ExplicitCommunication scope;
    for (const auto& rows : sharded::embedding(ids, table)) {
      EXPECT_TRUE(rows.equal(value.index_select(0, ids[0])));
    }
  });
}

TEST(ExplicitCommunication, HoldsInABackwardPass) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const auto value = torch::arange(32, at::kDouble).view({8, 4});
    const auto leaf = [&](const Placement& placement) {
      return DTensor(
          distribute_tensor(value, mesh, {placement}).requires_grad_());
    };
    const ExplicitCommunication scope;
    // A leaf's gradient comes in its layout, and a sum is reduced where asked.
    const auto x = leaf(Shard(0));
    const auto w = leaf(Replicate());
    DTensor(at::mul(x, w).sum()).redistribute({Replicate()}).backward();
    EXPECT_TRUE(DTensor(w.grad()).full_tensor().equal(value));
    // The formula of a product needs the gradient of a sum that is pending.
    const auto summed = at::mm(leaf(Shard(1)), leaf(Shard(1)).t());
    EXPECT_THAT(
        testing::error_of([&] { at::relu(summed); }),
        AllOf(
            HasSubstr("[aten.relu.default] would redistribute argument 'self'"),
            HasSubstr("from [P(sum)]")));
  });
}

}  // namespace explicit_communication_test
}  // namespace tessera
