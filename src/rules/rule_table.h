// The table of all rules, by op name.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/rule.h"

namespace tessera::detail {

// Safe to use from several threads at once.
class RuleTable {
 public:
  // A table without rules.
  RuleTable();
  ~RuleTable();
  RuleTable(const RuleTable&) = delete;
  RuleTable& operator=(const RuleTable&) = delete;

  // `op` is "namespace::name.overload", or "namespace::name" for all overloads
  // that have no entry of their own. Throws c10::ValueError if `op` is not
  // spelled so or has a rule already.
  void add(std::string_view op, Rule rule);
  // The same rule under several names.
  void add(std::initializer_list<std::string_view> ops, const Rule& rule);

  // The rule of an overload: its own, else its name's; nullptr if there is
  // none. The pointer stays valid: rules are never removed.
  const Rule* find(std::string_view op) const;

  // All names, sorted; for docs and tests.
  std::vector<std::string> names() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The process's table, with the built-in rules of all_rules.cpp in it.
RuleTable& rule_table();

// The op as messages name it, in torch's spelling: aten.add.Tensor,
// aten.mm.default.
std::string op_display_name(const c10::FunctionSchema& schema);

// Adds every family of built-in rules; in all_rules.cpp.
void add_all_rules(RuleTable& table);

// Every family of rules, each in the file of its name. all_rules.cpp calls
// them: adding a family is a line here and a line there.
void add_pointwise_rules(RuleTable& table);
void add_matrix_rules(RuleTable& table);
void add_reduction_rules(RuleTable& table);
void add_view_rules(RuleTable& table);
void add_copy_rules(RuleTable& table);
void add_join_rules(RuleTable& table);
void add_nn_rules(RuleTable& table);
void add_embedding_rules(RuleTable& table);
void add_bag_rules(RuleTable& table);

}  // namespace tessera::detail
