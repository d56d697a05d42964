#include "rules/rule_table.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/core/thrown_message.h"

namespace tessera::detail {
namespace rule_table_test {

Rule rule() {
  return {[](const OpCall&) -> Rows { return {}; }};
}

TEST(RuleTable, AnOverloadsOwnRuleGoesFirst) {
  RuleTable table;
  table.add("my::op", rule());
  table.add("my::op.special", rule());
  const Rule* general = table.find("my::op");
  ASSERT_NE(general, nullptr);
  EXPECT_EQ(table.find("my::op.other"), general);
  ASSERT_NE(table.find("my::op.special"), nullptr);
  EXPECT_NE(table.find("my::op.special"), general);
  EXPECT_EQ(table.find("my::opera"), nullptr);
  EXPECT_EQ(table.find("my::other"), nullptr);
  EXPECT_EQ(
      table.names(), (std::vector<std::string>{"my::op", "my::op.special"}));
}

TEST(RuleTable, AnOverloadAloneSpeaksForNoOther) {
  RuleTable table;
  table.add("my::op.Tensor", rule());
  EXPECT_NE(table.find("my::op.Tensor"), nullptr);
  EXPECT_EQ(table.find("my::op"), nullptr);
  EXPECT_EQ(table.find("my::op.Scalar"), nullptr);
}

TEST(RuleTable, OneRuleAnOp) {
  RuleTable table;
  table.add({"my::a", "my::b"}, rule());
  const std::string message =
      thrown_message<c10::ValueError>([&] { table.add("my::b", rule()); });
  EXPECT_NE(
      message.find("[register_rule] my::b has a rule already"),
      std::string::npos)
      << message;
}

TEST(RuleTable, Names) {
  RuleTable table;
  for (const char* name :
       {"add", "::add", "my::", "my::op(Tensor x)", "", "my::.Tensor"}) {
    const std::string message =
        thrown_message<c10::ValueError>([&] { table.add(name, rule()); });
    EXPECT_NE(
        message.find("[register_rule] expected an op as"), std::string::npos)
        << message;
  }
}

TEST(RuleTable, FoundWhileOthersAdd) {
  RuleTable table;
  table.add("my::first", rule());
  const Rule* first = table.find("my::first");
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string name =
            "my::op_" + std::to_string(t) + "_" + std::to_string(i);
        table.add(name, rule());
        wrong += table.find(name) == nullptr;
        wrong += table.find("my::first.overload") != first;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(table.names().size(), 901u);
}

TEST(RegisterRule, OpenToUsers) {
  register_rule("rule_table_test::op", rule());
  EXPECT_NE(rule_table().find("rule_table_test::op.default"), nullptr);
  EXPECT_THROW(register_rule("rule_table_test::op", rule()), c10::ValueError);
  EXPECT_NE(
      thrown_message<c10::ValueError>([] {
        register_rule("rule_table_test::empty", {});
      }).find("has no function that gives its rows"),
      std::string::npos);
  // The built-in rules are in the same table.
  EXPECT_NE(rule_table().find("aten::mm"), nullptr);
}

}  // namespace rule_table_test
}  // namespace tessera::detail
