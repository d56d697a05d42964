// What is refused, and in which words.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/async_errors.h"
#include "tessera/scopes.h"
#include "tests/dispatch/full_value.h"

namespace tessera {
namespace errors_test {

using tessera::testing::error_of;
using tessera::testing::expect_value;
using tessera::testing::laid_out;
using tessera::testing::on_four_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor value() { return at::arange(30, at::kDouble).view({5, 6}) - 11; }

TEST(Errors, MixedArgumentsNameThePlainOne) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    const auto help = AllOf(
        HasSubstr("plain tensor of shape [5, 6]"),
        HasSubstr("distribute_tensor"),
        HasSubstr("ImplicitReplication"));
    EXPECT_THAT(
        error_of([&] { x.add(value()); }),
        AllOf(HasSubstr("aten.add.Tensor"), HasSubstr("'other'"), help));
    EXPECT_THAT(
        error_of([&] { at::add(value(), x); }),
        AllOf(HasSubstr("'self'"), help));
    EXPECT_THAT(
        error_of([&] { at::cat({x, value()}); }),
        AllOf(HasSubstr("'tensors'"), help));
    EXPECT_THAT(
        error_of([&] { value().add_(x); }), AllOf(HasSubstr("'self'"), help));
    EXPECT_THAT(
        error_of([&] { at::where(value() > 0, x, x); }),
        HasSubstr("'condition'"));
  });
}

TEST(Errors, ImplicitReplicationTakesPlainTensors) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    {
      const ImplicitReplication guard;
      expect_value(x + value(), value() * 2);
      expect_value(at::mm(x, value().t()), at::mm(value(), value().t()));
      {
        const ImplicitReplication nested;
        expect_value(value() * x, value() * value());
      }
      expect_value(at::cat({x, value()}), at::cat({value(), value()}));
    }
    EXPECT_NE(error_of([&] { x.add(value()); }), "");
  });
}

TEST(Errors, NumbersArePlainWithoutAsking) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    expect_value(x + at::scalar_tensor(2.5, at::kDouble), value() + 2.5);
    expect_value(x * 3, value() * 3);
    expect_value(3 / (x + 20.5), 3 / (value() + 20.5));
    const auto floats = laid_out(value().to(at::kFloat), mesh, Shard(0), 1);
    // A 0-dim double does not promote a float tensor.
    EXPECT_EQ(
        (floats + at::scalar_tensor(1.5, at::kDouble)).dtype(), at::kFloat);
    // Partial sums and plain numbers: the number counts once.
    const auto pending = laid_out(value(), mesh, Partial(), 1);
    expect_value(pending + at::scalar_tensor(2.5, at::kDouble), value() + 2.5);
    expect_value(pending + 2.5, value() + 2.5);
  });
}

TEST(Errors, OpWithoutARuleNamesItself) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    const Strict strict;
    EXPECT_THAT(
        error_of<c10::NotImplementedError>([&] { at::unique_consecutive(x); }),
        AllOf(
            HasSubstr(
                "aten.unique_consecutive.default does not have a sharding "
                "strategy registered"),
            HasSubstr("full_tensor"),
            HasSubstr("register_rule")));
    EXPECT_THAT(
        error_of<c10::NotImplementedError>([&] { at::block_diag({x, x}); }),
        HasSubstr("does not have a sharding strategy registered"));
  });
}

TEST(Errors, StorageAccessNamesTheWayOut) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    EXPECT_THAT(
        error_of([&] { x.data_ptr(); }),
        AllOf(HasSubstr("full_tensor()"), HasSubstr("shard(rank)")));
    EXPECT_THAT(
        error_of([&] { x.const_data_ptr<double>(); }),
        HasSubstr("full_tensor()"));
    EXPECT_NE(error_of([&] { x.accessor<double, 2>(); }), "");
    EXPECT_NE(error_of([&] { x.storage(); }), "");
  });
}

TEST(Errors, ArgumentsOnDifferentMeshes) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto other = init_device_mesh("cpu", {2, 2});
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    const auto y = laid_out(value(), other, {Shard(0), Replicate()}, 1);
    EXPECT_THAT(
        error_of<c10::ValueError>([&] { x.add(y); }),
        AllOf(
            HasSubstr("different meshes"),
            HasSubstr("take full_tensor() of one and distribute that")));
    // As it says.
    const auto moved = distribute_tensor(y.full_tensor(), mesh, {Shard(0)});
    EXPECT_TRUE(DTensor(x.add(moved)).full_tensor().equal(value() * 2));
  });
}

TEST(Errors, ShapesAreCheckedAsOnOneDevice) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    const auto y = laid_out(value().t().contiguous(), mesh, Shard(0), 1);
    EXPECT_NE(error_of([&] { x.add(y); }), "");
    EXPECT_NE(error_of([&] { at::mm(x, x); }), "");
    EXPECT_NE(error_of([&] { x.view({7, 5}); }), "");
    EXPECT_NE(error_of<c10::IndexError>([&] { x.sum(2); }), "");
    EXPECT_NE(error_of<c10::IndexError>([&] { x.select(0, 5); }), "");
  });
}

TEST(Errors, ItemReadsTheValue) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    const auto total = x.sum();
    // A pending sum is reduced before it is read, or reading raises: a rank's
    // term is never taken for the value.
    double read = 0;
    if (error_of([&] { read = total.item<double>(); }).empty()) {
      EXPECT_EQ(read, value().sum().item<double>());
    }
  });
}

// What went wrong on a GPU after its call had returned.
TEST(Errors, TheNextOpRaisesAnErrorOfACollective) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    detail::post_async_error("[all_reduce] rank 3 was late");
    detail::post_async_error("another");
    EXPECT_THAT(
        error_of([&] { x.add(1); }), HasSubstr("[all_reduce] rank 3 was late"));
    expect_value(x.add(1), value() + 1);
  });
}

}  // namespace errors_test
}  // namespace tessera
