// The example of docs/adding_an_op.md: an op of the user's own.
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace register_rule_test {

at::Tensor scale_rows(const at::Tensor& x, const at::Tensor& s) {
  return x * s.unsqueeze(1);
}

TORCH_LIBRARY(tessera_test_ops, m) {
  m.def("scale_rows(Tensor x, Tensor s) -> Tensor");
  m.def("no_rule(Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(tessera_test_ops, CPU, m) {
  m.impl("scale_rows", &scale_rows);
  m.impl("no_rule", [](const at::Tensor& x) { return x.clone(); });
}

at::Tensor call(const char* name, std::vector<c10::IValue> stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
  return stack[0].toTensor();
}

ts::Rule scale_rows_rule() {
  const auto rows_or_columns = [](const ts::OpCall&) -> ts::Rows {
    return {
        {{ts::Shard(0), ts::Shard(0)}, {ts::Shard(0)}},
        {{ts::Shard(1), ts::Replicate()}, {ts::Shard(1)}},
        {{ts::Partial(), ts::Replicate()}, {ts::Partial()}},
    };
  };
  return {
      .rows = rows_or_columns,
      .output_sizes = [](const ts::OpCall& call) -> std::vector<ts::Sizes> {
        return {call.tensor(0).sizes};
      }};
}

void register_once() {
  static const bool registered = [] {
    ts::register_rule("tessera_test_ops::scale_rows", scale_rows_rule());
    return true;
  }();
  (void)registered;
}

TEST(RegisterRule, UsersOpRunsOnItsRows) {
  register_once();
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto x = torch::arange(35, torch::kFloat).view({7, 5});
    const auto s = torch::arange(7, torch::kFloat);
    const auto wanted = scale_rows(x, s);
    for (const auto& placement :
         {ts::Shard(0), ts::Shard(1), ts::Replicate()}) {
      const ts::Placements placements(mesh.ndim(), placement);
      const auto dx = ts::distribute_tensor(x, mesh, placements);
      const auto ds = ts::distribute_tensor(s, mesh);
      const ts::DTensor y(call("tessera_test_ops::scale_rows", {dx, ds}));
      EXPECT_EQ(y.placements(), ts::PlacementsRef(placements));
      const auto full = y.full_tensor();
      if (full.numel() != 0) {
        EXPECT_TRUE(full.equal(wanted));
      }
    }
  });
}

TEST(RegisterRule, ASecondRuleForAnOpIsRefused) {
  register_once();
  EXPECT_THROW(
      ts::register_rule("tessera_test_ops::scale_rows", scale_rows_rule()),
      c10::ValueError);
}

TEST(RegisterRule, WithoutARuleAStrictScopeRefusesAndSaysItsName) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    const ts::Strict strict;
    const auto x = ts::distribute_tensor(torch::ones({4}), mesh);
    try {
      call("tessera_test_ops::no_rule", {x});
      FAIL() << "expected a refusal";
    } catch (const c10::NotImplementedError& error) {
      EXPECT_NE(
          std::string(error.what())
              .find("tessera_test_ops.no_rule.default does not have a sharding "
                    "strategy registered"),
          std::string::npos)
          << error.what();
    }
  });
}

}  // namespace register_rule_test
