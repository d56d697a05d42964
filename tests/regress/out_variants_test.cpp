// out= was refused for index_select, index_add, scatter, scatter_add and
// scatter_reduce, whose rules gave no placement for it ("[register_rule] the
// row
// ... but the call has 4"), and ended in an internal assert for lists.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <set>
#include <string>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/oracle.h"
#include "testing/samples.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace out_variants_test {

using ts::testing::Sample;

// Whether a sample of the op without `out` is one of the op with it, for ATen.
bool takes_sample(const Sample& sample) {
  const auto op = sample.handle();
  const auto& arguments = op.schema().arguments();
  // What ATen makes of other ops writes through those. The others fail on one
  // device, or depend on what `out` was.
  static const std::set<std::string> left_out{
      "aten::_stack.out",
      "aten::binary_cross_entropy.out",
      "aten::bincount.out",
      "aten::ones_like.out",
      "aten::zeros_like.out"};
  if (arguments.empty() || !arguments.back().is_out() ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
      left_out.count(sample.op) != 0) {
    return false;
  }
  try {
    const ts::testing::Oracle one_device(sample);
    return true;
  } catch (const c10::Error&) {
    return false;  // another overload than that of the sample
  }
}

// The samples of every op, as the overload that writes into `out`, unless that
// has samples of its own.
std::vector<Sample> out_samples() {
  std::set<std::string> names;
  for (const auto& sample : ts::testing::all_samples()) {
    names.insert(sample.op);
  }
  std::vector<Sample> outs;
  for (const auto& sample : ts::testing::all_samples()) {
    ts::testing::Samples variants;
    ts::testing::add_with_variants(variants, sample);
    for (auto& variant : variants) {
      if (names.insert(variant.op).second && takes_sample(variant)) {
        outs.push_back(std::move(variant));
      }
    }
  }
  return outs;
}

TEST(OutVariants, EqualOneDevice) {
  size_t calls = 0;
  ts::testing::with_mesh({3}, [&](const ts::DeviceMesh& mesh) {
    for (const auto& sample : out_samples()) {
      SCOPED_TRACE(sample.str());
      const ts::testing::Oracle oracle(sample);
      for (const auto& layouts : ts::testing::layouts_to_try(
               oracle.tensors(), mesh, /*limit=*/3, /*seed=*/1)) {
        EXPECT_EQ(oracle.check(mesh, layouts).failure, "");
        ++calls;
      }
    }
  });
  EXPECT_GT(calls, 300);
}

TEST(OutVariants, Indexing) {
  const auto value = torch::arange(32, torch::kDouble).view({8, 4});
  const auto places = torch::arange(32).view({8, 4}).mul(5).remainder(8);
  const auto rows = torch::tensor({1, 3, 5});
  const auto source = value.slice(0, 0, 3) * 0.5;
  using T = const at::Tensor&;
  const std::vector<std::function<void(T, T, T, T, at::Tensor&)>> calls = {
      [](T x, T i, T, T, at::Tensor& out) {
        at::scatter_out(out, x, 0, i, x * 2);
      },
      [](T x, T i, T, T, at::Tensor& out) { at::scatter_out(out, x, 0, i, 7); },
      [](T x, T i, T, T, at::Tensor& out) {
        at::scatter_out(out, x, 0, i, x * 2, "add");
      },
      [](T x, T i, T, T, at::Tensor& out) {
        at::scatter_add_out(out, x, 1, i.remainder(4), x);
      },
      [](T x, T i, T, T, at::Tensor& out) {
        at::scatter_reduce_out(out, x, 0, i, x, "amax");
      },
      [](T x, T, T r, T s, at::Tensor& out) {
        at::index_add_out(out, x, 0, r, s);
      },
      [](T x, T i, T, T, at::Tensor& out) {
        at::index_select_out(out, x, 0, i.select(1, 0));
      },
  };
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (size_t c = 0; c < calls.size(); ++c) {
      auto expected = torch::zeros({8, 4}, torch::kDouble);
      calls[c](value, places, rows, source, expected);
      for (const auto& layout : ts::testing::layouts(mesh, 2)) {
        SCOPED_TRACE(
            "call " + std::to_string(c) + ", " + ts::to_string(layout));
        at::Tensor out = ts::zeros({8, 4}, mesh, layout, torch::kDouble);
        calls[c](
            ts::distribute_tensor(value, mesh, layout),
            ts::distribute_tensor(places, mesh, layout),
            ts::distribute_tensor(rows, mesh),
            ts::distribute_tensor(source, mesh, layout),
            out);
        EXPECT_EQ(
            ts::testing::difference(ts::DTensor(out).full_tensor(), expected),
            "");
        EXPECT_TRUE(ts::DTensor(out).placements() == ts::PlacementsRef(layout));
      }
    }
  });
}

TEST(OutVariants, Lists) {
  const auto value = torch::arange(32, torch::kDouble).view({8, 4});
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const auto& layout : ts::testing::layouts(mesh, 2)) {
      SCOPED_TRACE(ts::to_string(layout));
      const auto x = ts::distribute_tensor(value, mesh, layout);
      std::vector<at::Tensor> outs{
          ts::zeros({5, 4}, mesh, layout, torch::kDouble),
          ts::zeros({3, 4}, mesh, layout, torch::kDouble)};
      at::split_with_sizes_copy_out(outs, x, {5, 3});
      EXPECT_TRUE(
          ts::DTensor(outs[0]).full_tensor().equal(value.slice(0, 0, 5)));
      EXPECT_TRUE(
          ts::DTensor(outs[1]).full_tensor().equal(value.slice(0, 5, 8)));
      std::vector<at::Tensor> columns;
      for (int64_t i = 0; i < 4; ++i) {
        columns.push_back(ts::zeros(
            {8},
            mesh,
            {layout[0].is_shard(0) ? layout[0] : ts::Replicate()},
            torch::kDouble));
      }
      at::unbind_copy_out(columns, x, 1);
      EXPECT_TRUE(
          ts::DTensor(columns[3]).full_tensor().equal(value.select(1, 3)));
      ts::testing::throws_saying<c10::Error>(
          "out= argument of size 3, got size 2",
          [&] { at::split_with_sizes_copy_out(outs, x, {4, 2, 2}); });
      ts::testing::throws_saying<c10::Error>("which cannot be resized", [&] {
        at::split_with_sizes_copy_out(outs, x, {4, 4});
      });
    }
  });
}

}  // namespace out_variants_test
