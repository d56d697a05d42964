// Arguments by name, as rules read them.
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rules/rule_table.h"
#include "tessera/rule.h"
#include "tests/core/thrown_message.h"

namespace tessera::detail {
namespace op_call_test {

const c10::FunctionSchema& schema_of(const char* name, const char* overload) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, overload)
      .schema();
}

// sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, dtype=None)
OpCall sum_call(const std::vector<c10::IValue>& arguments) {
  return {schema_of("aten::sum", "dim_IntList"), arguments, {}};
}

std::vector<c10::IValue> sum_arguments(c10::IValue dim) {
  return {c10::IValue(), std::move(dim), true, c10::IValue()};
}

TEST(OpCall, ArgumentsByName) {
  const auto arguments = sum_arguments(c10::List<int64_t>({1, -1}));
  const OpCall call = sum_call(arguments);
  EXPECT_TRUE(call.has("keepdim"));
  EXPECT_FALSE(call.has("dims"));
  EXPECT_TRUE(call.is_none("dtype"));
  EXPECT_TRUE(call.is_none("no_such_argument"));
  EXPECT_FALSE(call.is_none("dim"));
  EXPECT_TRUE(call.boolean("keepdim"));
  EXPECT_EQ(call.integers("dim"), (Sizes{1, -1}));
  EXPECT_EQ(call.dimensions("dim", 3), (Sizes{1, 2}));
  EXPECT_NE(
      thrown_message<c10::ValueError>([&] {
        call.argument("dims");
      }).find("has none called \"dims\""),
      std::string::npos);
  EXPECT_NE(
      thrown_message<c10::TypeError>([&] { call.integer("dim"); })
          .find("[OpCall::integer] expected an integer as argument \"dim\" of "
                "aten.sum.dim_IntList"),
      std::string::npos);
}

TEST(OpCall, Dimensions) {
  const auto dims = [](c10::IValue dim, int64_t ndim) {
    const auto arguments = sum_arguments(std::move(dim));
    return sum_call(arguments).dimensions("dim", ndim);
  };
  EXPECT_EQ(dims(c10::IValue(), 3), (Sizes{0, 1, 2}));
  EXPECT_EQ(dims(c10::List<int64_t>(), 2), (Sizes{0, 1}));
  EXPECT_EQ(dims(int64_t{-2}, 2), (Sizes{0}));
  EXPECT_EQ(dims(c10::List<int64_t>({-1}), 0), Sizes{});
  EXPECT_NE(
      thrown_message<c10::IndexError>([&] { dims(c10::List<int64_t>({5}), 2); })
          .find(
              "Dimension out of range (expected to be in range of [-2, 1], but "
              "got 5)"),
      std::string::npos);
  EXPECT_THROW(dims(c10::List<int64_t>({1, -1}), 2), c10::Error);
}

TEST(OpCall, Dimension) {
  // softmax(Tensor self, int dim, bool half_to_float)
  const auto dim = [](int64_t value, int64_t ndim) {
    const std::vector<c10::IValue> arguments{c10::IValue(), value, false};
    return OpCall(schema_of("aten::_softmax", ""), arguments, {})
        .dimension("dim", ndim);
  };
  EXPECT_EQ(dim(-1, 3), 2);
  EXPECT_EQ(dim(1, 3), 1);
  EXPECT_EQ(dim(-1, 0), 0);
  EXPECT_EQ(dim(0, 0), 0);
  EXPECT_NE(
      thrown_message<c10::IndexError>([&] { dim(5, 2); })
          .find("Dimension out of range (expected to be in range of [-2, 1], "
                "but got 5)"),
      std::string::npos);
  EXPECT_THROW(dim(1, 0), c10::IndexError);
}

TEST(OpCall, SymIntsThatAreConcrete) {
  // view(Tensor self, SymInt[] size)
  const std::vector<c10::SymInt> size{c10::SymInt(2), c10::SymInt(-1)};
  c10::impl::GenericList generic(c10::SymIntType::get());
  generic.push_back(size[0]);
  generic.push_back(size[1]);
  for (const c10::IValue& boxed :
       {c10::IValue(c10::ArrayRef<c10::SymInt>(size)),
        c10::IValue(generic),
        c10::IValue(c10::List<int64_t>({2, -1}))}) {
    const std::vector<c10::IValue> arguments{c10::IValue(), boxed};
    const OpCall call(schema_of("aten::view", ""), arguments, {});
    EXPECT_EQ(call.integers("size"), (Sizes{2, -1}));
  }
}

TEST(Row, Text) {
  const Rows rows{
      {{Shard(0), Replicate()}, {Shard(0)}},
      {{Shard(1), Shard(0)}, {Partial("sum"), Replicate()}},
      {{}, {Replicate()}}};
  EXPECT_EQ(rows[0].str(), "S(0),R->S(0)");
  EXPECT_EQ(to_string(rows), "S(0),R->S(0) | S(1),S(0)->P(sum),R | ->R");
}

TEST(OpDisplayName, AsTorchSpellsIt) {
  EXPECT_EQ(op_display_name(schema_of("aten::mm", "")), "aten.mm.default");
  EXPECT_EQ(
      op_display_name(schema_of("aten::add", "Tensor")), "aten.add.Tensor");
}

}  // namespace op_call_test
}  // namespace tessera::detail
