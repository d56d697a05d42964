// Ops that write keep the layout of what they write, or raise.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/dispatch/full_value.h"

namespace tessera {
namespace inplace_test {

using tessera::testing::error_of;
using tessera::testing::expect_value;
using tessera::testing::laid_out;
using tessera::testing::on_four_ranks;
using tessera::testing::placements_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor value() { return at::arange(30, at::kDouble).view({5, 6}) - 11; }

TEST(InPlace, KeepsTheLayoutWhateverTheOthersHave) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const std::vector<Placement> layouts = {Replicate(), Shard(0), Shard(1)};
    std::vector<Placement> others = layouts;
    others.push_back(Partial());
    for (const auto& layout : layouts) {
      for (const auto& other : others) {
        SCOPED_TRACE(layout.str() + " += " + other.str());
        const auto x = laid_out(value(), mesh, layout, 1);
        const auto y = laid_out(value() * 3, mesh, other, 2);
        x.add_(y);
        expect_value(x, value() * 4);
        EXPECT_EQ(placements_of(x), to_string({layout}));
      }
    }
  });
}

TEST(InPlace, PendingSumStaysPendingUnderLinearOps) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Partial(), 1);
    x.mul_(2);
    EXPECT_EQ(placements_of(x), "[P(sum)]");
    expect_value(x, value() * 2);
    x.add_(laid_out(value(), mesh, Replicate(), 2));
    EXPECT_EQ(placements_of(x), "[P(sum)]");
    expect_value(x, value() * 3);
    x.zero_();
    EXPECT_EQ(placements_of(x), "[P(sum)]");
    expect_value(x, at::zeros_like(value()));
  });
}

TEST(InPlace, RefusesWhatAPendingSumCannotHold) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Partial(), 1);
    const auto refusal = AllOf(
        HasSubstr("cannot keep the layout [P(sum)]"),
        HasSubstr("redistribute it first"));
    EXPECT_THAT(
        error_of<c10::NotImplementedError>([&] { x.relu_(); }),
        AllOf(refusal, HasSubstr("aten.relu_.default")));
    EXPECT_THAT(
        error_of<c10::NotImplementedError>([&] { x.add_(1); }), refusal);
    EXPECT_THAT(error_of<c10::NotImplementedError>([&] { x.exp_(); }), refusal);
    // Nothing was written.
    expect_value(x, value());
  });
}

TEST(InPlace, ReturnsTheVeryTensor) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    EXPECT_TRUE(x.add_(1).is_same(x));
    auto out = laid_out(value(), mesh, Shard(1), 1);
    EXPECT_TRUE(at::mul_out(out, x, x).is_same(out));
    expect_value(out, (value() + 1).pow(2));
    EXPECT_EQ(placements_of(out), "[S(1)]");
  });
}

TEST(InPlace, BumpsTheVersion) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    const auto before = x._version();
    x.add_(1);
    EXPECT_EQ(x._version(), before + 1);
  });
}

TEST(InPlace, ChecksShapesAndTypesAsOneDeviceDoes) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    const auto wide =
        laid_out(at::ones({2, 5, 6}, at::kDouble), mesh, Replicate(), 1);
    EXPECT_NE(error_of([&] { x.add_(wide); }), "");
    const auto whole = laid_out(at::ones({5, 6}, at::kLong), mesh, Shard(0), 1);
    EXPECT_THAT(error_of([&] { whole.div_(2); }), HasSubstr("can't be cast"));
    at::Tensor small =
        laid_out(at::ones({2}, at::kDouble), mesh, Replicate(), 1);
    EXPECT_NE(error_of([&] { at::add_out(small, x, x); }), "");
    expect_value(small, at::ones({2}, at::kDouble));
  });
}

TEST(InPlace, CopyTakesAnyLayoutAndType) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const auto& from : {Replicate(), Shard(0), Shard(1), Partial()}) {
      const auto x = laid_out(at::zeros({5, 6}), mesh, Shard(0), 1);
      x.copy_(laid_out(value(), mesh, from, 3));
      expect_value(x, value().to(at::kFloat));
      EXPECT_EQ(placements_of(x), "[S(0)]");
    }
  });
}

}  // namespace inplace_test
}  // namespace tessera
