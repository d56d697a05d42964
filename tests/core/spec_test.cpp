#include "tessera/spec.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unordered_set>

#include "scoped_process_context.h"
#include "thrown_message.h"

namespace tessera {
namespace spec_test {

using detail::ScopedProcessContext;
using detail::thrown_message;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Spec, Interned) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {4});
  const DeviceMesh pairs = init_device_mesh("cpu", {2, 2});
  const SpecPtr spec = Spec::make(mesh, {Shard(0)}, {8, 4}, at::kFloat);
  EXPECT_EQ(spec, Spec::make(mesh, {Shard(0)}, {8, 4}, at::kFloat));
  EXPECT_EQ(spec, Spec::make(mesh, {Shard(0)}, {8, 4}, {4, 1}, at::kFloat));
  EXPECT_EQ(spec->dim(), 2);
  EXPECT_EQ(spec->numel(), 32);
  EXPECT_THAT(spec->strides, ElementsAre(4, 1));

  const std::vector<SpecPtr> others{
      Spec::make(mesh, {Shard(1)}, {8, 4}, at::kFloat),
      Spec::make(mesh, {Replicate()}, {8, 4}, at::kFloat),
      Spec::make(mesh, {Partial()}, {8, 4}, at::kFloat),
      Spec::make(mesh, {MaskPartial({9, 4}, 0)}, {8, 4}, at::kFloat),
      Spec::make(mesh, {MaskPartial({8, 4}, 0)}, {8, 4}, at::kFloat),
      Spec::make(mesh, {Shard(0)}, {4, 8}, at::kFloat),
      Spec::make(mesh, {Shard(0)}, {8, 4, 1}, at::kFloat),
      Spec::make(mesh, {Shard(0)}, {8, 4}, {1, 8}, at::kFloat),
      Spec::make(mesh, {Shard(0)}, {8, 4}, at::kDouble),
      Spec::make(pairs, {Shard(0), Replicate()}, {8, 4}, at::kFloat),
      Spec::make(pairs, {Replicate(), Shard(0)}, {8, 4}, at::kFloat)};
  std::unordered_set<const Spec*> pointers{spec.get()};
  std::unordered_set<size_t> hashes{spec->hash};
  for (const SpecPtr& other : others) {
    EXPECT_TRUE(pointers.insert(other.get()).second) << other->str();
    EXPECT_TRUE(hashes.insert(other->hash).second) << other->str();
  }
}

TEST(Spec, HashSpreads) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {4});
  std::unordered_set<size_t> hashes;
  std::unordered_set<size_t> low_bits;
  for (int64_t rows = 0; rows < 64; ++rows) {
    for (int64_t columns = 0; columns < 64; ++columns) {
      const size_t hash =
          Spec::make(mesh, {Shard(0)}, {rows, columns}, at::kFloat)->hash;
      hashes.insert(hash);
      low_bits.insert(hash & 0xffff);
    }
  }
  EXPECT_EQ(hashes.size(), 4096u);
  // 4,096 draws of 65,536 values give 3,969 different ones on average.
  EXPECT_GT(low_bits.size(), 3800u);
}

TEST(Spec, Text) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {4});
  EXPECT_EQ(
      Spec::make(mesh, {Shard(0)}, {8, 4}, at::kFloat)->str(),
      "Float[8, 4] on [S(0)] of DeviceMesh(cpu, 4, ranks [0, 1, 2, 3])");
  EXPECT_EQ(
      Spec::make(mesh, {Partial()}, {8, 4}, {1, 8}, at::kLong)->str(),
      "Long[8, 4] with strides [1, 8] on [P(sum)] of "
      "DeviceMesh(cpu, 4, ranks [0, 1, 2, 3])");
  EXPECT_EQ(
      Spec::make(mesh, {Replicate()}, {}, at::kBool)->str(),
      "Bool[] on [R] of DeviceMesh(cpu, 4, ranks [0, 1, 2, 3])");
}

TEST(Spec, With) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {4});
  const SpecPtr spec = Spec::make(mesh, {Shard(0)}, {8, 4}, {1, 8}, at::kFloat);
  EXPECT_EQ(spec->with({Shard(0)}), spec);
  EXPECT_EQ(
      spec->with({Replicate()}),
      Spec::make(mesh, {Replicate()}, {8, 4}, {1, 8}, at::kFloat));
  EXPECT_EQ(spec->with(at::kFloat), spec);
  EXPECT_EQ(
      spec->with(at::kLong),
      Spec::make(mesh, {Shard(0)}, {8, 4}, {1, 8}, at::kLong));
}

TEST(Spec, GoesWithItsLastUser) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {4});
  const size_t before = live_spec_count();
  {
    const SpecPtr a = Spec::make(mesh, {Shard(0)}, {8, 4}, at::kFloat);
    const SpecPtr b = Spec::make(mesh, {Shard(0)}, {8, 4}, at::kFloat);
    const SpecPtr c = Spec::make(mesh, {Shard(0)}, {8, 5}, at::kFloat);
    EXPECT_EQ(live_spec_count(), before + 2);
  }
  EXPECT_EQ(live_spec_count(), before);
  for (int64_t n = 0; n < 10'000; ++n) {
    Spec::make(mesh, {Shard(0)}, {n}, at::kFloat);
  }
  EXPECT_EQ(live_spec_count(), before);
}

TEST(Spec, Refuses) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {4});
  const size_t before = live_spec_count();
  EXPECT_THAT(
      thrown_message<c10::ValueError>(
          [&] { Spec::make(mesh, {Shard(-1)}, {8, 4}, at::kFloat); }),
      AllOf(StartsWith("[Spec::make] "), HasSubstr("normalize_placements")));
  EXPECT_THROW(
      Spec::make(mesh, {Shard(2)}, {8, 4}, at::kFloat), c10::ValueError);
  EXPECT_THROW(Spec::make(mesh, {}, {8, 4}, at::kFloat), c10::ValueError);
  EXPECT_THROW(
      Spec::make(mesh, {Shard(0)}, {8, 4}, {4}, at::kFloat), c10::ValueError);
  EXPECT_THROW(
      Spec::make(mesh, {Shard(0)}, {-8, 4}, at::kFloat), c10::ValueError);
  EXPECT_EQ(live_spec_count(), before);
}

TEST(ContiguousStrides, AsATen) {
  EXPECT_THAT(row_major_strides({}), ElementsAre());
  EXPECT_THAT(row_major_strides({5}), ElementsAre(1));
  EXPECT_THAT(row_major_strides({2, 3, 4}), ElementsAre(12, 4, 1));
  EXPECT_THAT(row_major_strides({4, 1, 3}), ElementsAre(3, 3, 1));
  EXPECT_THAT(row_major_strides({2, 0, 3}), ElementsAre(3, 3, 1));
}

TEST(NormalizePlacements, Accepts) {
  const ScopedProcessContext world(8);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 2, 2});
  const struct {
    const char* given;
    const char* normalized;
  } table[] = {
      {"[R, R, R]", "[R, R, R]"},
      {"[S(-1), R, S(-3)]", "[S(2), R, S(0)]"},
      {"[S(1), S(1), S(-2)]", "[S(1), S(1), S(1)]"},
      {"[P(sum), P(avg), S(0)]", "[P(sum), P(avg), S(0)]"},
      {"[P(max), R, P(max)]", "[P(max), R, P(max)]"},
      {"[P(min), P(min), P(min)]", "[P(min), P(min), P(min)]"},
      {"[P(product), P(product), R]", "[P(product), P(product), R]"},
  };
  for (const auto& row : table) {
    EXPECT_EQ(
        to_string(
            normalize_placements(parse_placements(row.given), mesh, 3, "test")),
        row.normalized);
  }
  const Placements masked{
      MaskPartial({4, 2}, 0), Partial(), Partial(ReduceOp::Avg)};
  EXPECT_EQ(
      to_string(normalize_placements(masked, mesh, 3, "test")),
      "[MaskP, P(sum), P(avg)]");
}

TEST(NormalizePlacements, Refuses) {
  const ScopedProcessContext world(8);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 2, 2});
  const auto message = [&](Placements placements, int64_t ndim) {
    return thrown_message<c10::ValueError>(
        [&] { normalize_placements(placements, mesh, ndim, "some_call"); });
  };
  EXPECT_THAT(
      message(parse_placements("[R, R]"), 2),
      AllOf(
          StartsWith("[some_call] "),
          HasSubstr("must have the same length"),
          HasSubstr("the mesh has 3 dimensions and 2 placements")));
  EXPECT_THAT(
      message(parse_placements("[R, S(2), R]"), 2),
      AllOf(
          StartsWith("[some_call] "),
          HasSubstr("shard dimension 2 in [R, S(2), R]"),
          HasSubstr("a tensor of 2 dimensions"),
          HasSubstr("expected -2 to 1")));
  EXPECT_THAT(
      message(parse_placements("[R, S(-3), R]"), 2),
      HasSubstr("shard dimension -3"));
  EXPECT_THAT(
      message(parse_placements("[R, S(0), R]"), 0),
      HasSubstr("a tensor of 0 dimensions"));
  for (const char* mixed :
       {"[P(sum), R, P(max)]",
        "[P(min), P(max), R]",
        "[P(avg), P(product), R]",
        "[P(sum), P(avg), P(min)]",
        "[P(product), P(sum), R]"}) {
    EXPECT_THAT(
        message(parse_placements(mixed), 2),
        AllOf(StartsWith("[some_call] "), HasSubstr("order would matter")))
        << mixed;
  }
  EXPECT_THAT(
      message({MaskPartial({4}, 0), Partial("max"), Replicate()}, 2),
      HasSubstr("order would matter"));
}

}  // namespace spec_test
}  // namespace tessera
