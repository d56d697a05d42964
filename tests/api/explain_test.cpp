#include <tessera/debug.h>
#include <tessera/distribute.h>
#include <tessera/embedding.h>
#include <tessera/world.h>
#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace explain_test {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Explanations are about layouts: a simulated world in either run.
class Explain : public ::testing::Test {
 protected:
  DTensor tensor(SizesRef sizes, const Placement& placement) const {
    return empty(sizes, mesh_, {placement}, at::kMeta);
  }
  SpecPtr spec(SizesRef sizes, const char* placements) const {
    return Spec::make(mesh_, parse_placements(placements), sizes, at::kFloat);
  }

  World world_ = World::simulate(4);
  DeviceMesh mesh_ = init_device_mesh("cpu", {4});
};

TEST_F(Explain, NamesRowsPricesAndTheChoice) {
  const auto x = tensor({8, 16}, Shard(0));
  const auto w = tensor({16, 12}, Replicate());
  const auto text = explain("aten::mm", {x, w});
  EXPECT_THAT(text, HasSubstr("argument 0: [S(0)]"));
  EXPECT_THAT(text, HasSubstr("argument 1: [R]"));
  EXPECT_THAT(text, HasSubstr("* S(0),R->S(0)"));
  EXPECT_THAT(text, HasSubstr("  R,S(1)->S(1)"));
  EXPECT_THAT(text, HasSubstr("  S(1),S(0)->P(sum)"));
  EXPECT_THAT(text, HasSubstr("chosen: [S(0)], [R] -> [S(0)], 0.0 us"));
}

TEST_F(Explain, ShowsWhatHasToMove) {
  const auto text =
      explain("mm", {tensor({8, 16}, Shard(0)), tensor({16, 12}, Shard(0))});
  EXPECT_THAT(text, HasSubstr("all_gather"));
  EXPECT_THAT(text, HasSubstr("argument 1: "));
}

TEST_F(Explain, TheOverloadIsFoundByItsArguments) {
  const auto x = tensor({8, 16}, Shard(1));
  EXPECT_THAT(
      explain("add", {x, x}), HasSubstr("chosen: [S(1)], [S(1)] -> [S(1)]"));
  EXPECT_THAT(
      explain("aten::sum", {x, std::vector<int64_t>{1}, true}),
      HasSubstr("[S(1)] -> [P(sum)]"));
  EXPECT_EQ(explain("aten::add.Tensor", {x, x}), explain("add", {x, x}));
}

TEST_F(Explain, LookupsAreExplainedByTheirOwnOps) {
  const auto indices = empty(
      {64, 8},
      mesh_,
      {Replicate()},
      at::TensorOptions(at::kMeta).dtype(at::kLong));
  EXPECT_THAT(
      explain("aten::embedding", {tensor({100, 16}, Shard(0)), indices}),
      HasSubstr("* S(0),R->MaskP"));
  const auto index = empty(
      {8, 4},
      mesh_,
      {Replicate()},
      at::TensorOptions(at::kMeta).dtype(at::kLong));
  EXPECT_THAT(
      explain("aten::gather", {tensor({8, 16}, Shard(1)), 1, index}),
      HasSubstr("* S(1),R->MaskP"));
}

TEST_F(Explain, NamesTheWayOfIndicesThatAreCut) {
  const auto table = zeros({1000, 64}, mesh_, {Shard(0)});
  const auto few = zeros({8}, mesh_, {Shard(0)}, at::kLong);
  const auto many = zeros({4096}, mesh_, {Shard(0)}, at::kLong);
  EXPECT_THAT(explain("aten::embedding", {table, few}), HasSubstr("* gather"));
  EXPECT_THAT(
      explain("aten::embedding", {table, many}), HasSubstr("* exchange"));
  const EmbeddingScope scope({.strategy = LookupStrategy::Gather});
  EXPECT_THAT(explain("aten::embedding", {table, many}), HasSubstr("* gather"));
}

TEST_F(Explain, NamesTheWayOfBagsThatAreCut) {
  const auto table = zeros({1000, 64}, mesh_, {Shard(0)});
  const auto strategies_of = [&](int64_t bags, int64_t mode) {
    const auto indices = zeros({bags * 8}, mesh_, {Shard(0)}, at::kLong);
    const auto offsets = distribute_tensor(
        at::arange(0, bags * 8, 8, at::kLong), mesh_, {Replicate()});
    return explain(
        "aten::_embedding_bag",
        {table,
         indices,
         offsets,
         false,
         mode,
         false,
         c10::IValue(),
         false,
         -1});
  };
  EXPECT_THAT(strategies_of(4, 0), HasSubstr("* gather"));
  EXPECT_THAT(strategies_of(4096, 0), HasSubstr("* exchange"));
  EXPECT_THAT(strategies_of(4096, 2), HasSubstr("* exchange"));
  {
    const EmbeddingScope scope({.strategy = LookupStrategy::Gather});
    EXPECT_THAT(strategies_of(4096, 0), HasSubstr("* gather"));
  }
  // Shards do not hold whole bags: as if they were replicated.
  EXPECT_THAT(strategies_of(3, 0), HasSubstr("* S(0),R,R,R->P(sum)"));
  EXPECT_THAT(strategies_of(3, 2), HasSubstr("merged by two all_reduces"));
}

TEST_F(Explain, TakesSpecsForTensors) {
  EXPECT_EQ(
      explain("mm", {spec({8, 16}, "S(0)"), spec({16, 12}, "R")}),
      explain(
          "mm", {tensor({8, 16}, Shard(0)), tensor({16, 12}, Replicate())}));
  EXPECT_THAT(
      explain("mul", {spec({8, 2}, "P(sum)"), spec({8, 2}, "R")}),
      HasSubstr("chosen: [P(sum)], [R] -> [P(sum)]"));
  EXPECT_THAT(
      explain("cat", {spec({8, 2}, "S(0)"), spec({8, 3}, "S(0)")}, {1}),
      HasSubstr("-> [S(0)]"));
}

TEST_F(Explain, RefusesWhatTheCallWouldRefuse) {
  const auto x = tensor({8, 16}, Shard(0));
  EXPECT_THAT(
      [&] { explain("mm", {x, torch::ones({16, 4})}); },
      ThrowsMessage<c10::Error>(HasSubstr("'mat2' is a plain tensor")));
}

TEST_F(Explain, SaysWhyTheTextCannotBeHad) {
  const auto x = tensor({8, 16}, Shard(0));
  EXPECT_THAT(
      [&] { explain("no_such_op", {x}); },
      ThrowsMessage<c10::ValueError>(HasSubstr("[explain] there is no op")));
  EXPECT_THAT(
      [&] { explain("mm", {x}); },
      ThrowsMessage<c10::ValueError>(
          HasSubstr("[explain] the arguments do not fit mm:\n  aten::mm")));
  EXPECT_THAT(
      [&] { explain("mm", {torch::ones({2, 2}), torch::ones({2, 2})}); },
      ThrowsMessage<c10::ValueError>(HasSubstr("is distributed")));
}

TEST_F(Explain, ComposedOpsAreExplainedByWhatTheyRun) {
  const auto x = tensor({8, 16}, Shard(0));
  const auto text = explain("linear", {x, tensor({4, 16}, Replicate())});
  EXPECT_THAT(text, HasSubstr("aten.linear.default runs"));
  EXPECT_THAT(text, HasSubstr("sends nothing"));
  EXPECT_THAT(text, HasSubstr("aten.mm.default on DeviceMesh"));
}

// A mean over uneven shards is a sum that is divided: its own rule, which knows
// means of even shards, is not what runs.
TEST_F(Explain, MeansOfUnevenShards) {
  const auto x = tensor({9, 2}, Shard(0));
  const auto text = explain("mse_loss", {x, x});
  EXPECT_THAT(text, HasSubstr("aten.mse_loss.default runs"));
  EXPECT_THAT(text, HasSubstr("chosen: [S(0)] -> [P(sum)]"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("-> [P(avg)]")));
}

TEST_F(Explain, Functions) {
  const auto x = tensor({8, 16}, Shard(0));
  const auto w = tensor({8, 16}, Shard(1));
  const CommDebugMode comm;
  const auto text = explain(
      "my_layer",
      [](at::TensorList t) { at::relu(at::add(t[0], t[1])).sum(); },
      {x, w});
  EXPECT_THAT(text, HasSubstr("my_layer runs 3 ops by rows and sends"));
  EXPECT_THAT(text, HasSubstr("1 all_to_all of aten::add.Tensor"));
  EXPECT_THAT(text, HasSubstr("aten.relu.default"));
  EXPECT_EQ(comm.get_total_counts(), 0);
}

TEST_F(Explain, InPlaceOpsThatCannotKeepTheirLayoutSaySo) {
  EXPECT_THAT(
      explain("relu_", {spec({4}, "P(sum)")}),
      HasSubstr("no row keeps the layout of the tensor that is written"));
}

TEST_F(Explain, SendsNothing) {
  const CommDebugMode comm;
  explain("mm", {tensor({8, 16}, Shard(0)), tensor({16, 12}, Shard(0))});
  EXPECT_EQ(comm.get_total_counts(), 0);
}

}  // namespace explain_test
}  // namespace tessera
