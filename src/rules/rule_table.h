// The table of all rules, by op name.
#pragma once

#include <c10/macros/Macros.h>

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
  C10_DISABLE_COPY_AND_ASSIGN(RuleTable);

  // `op` is "namespace::name.overload", or "namespace::name" for all overloads
  // that have no entry of their own. Throws c10::ValueError if `op` is not
  // spelled so or has a rule already.
  void add(std::string_view op, Rule rule);
  // The same rule under several names.
  void add(std::initializer_list<std::string_view> ops, const Rule& rule);

  // The rule of an overload: its own, else that of the overload whose results
  // it writes ("x.y" for "x.y_out"), else its name's; nullptr if there is none.
  // The pointer stays valid: rules are never removed.
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

using AddRules = void(RuleTable& table);

// Adds every family of built-in rules; in all_rules.cpp.
AddRules add_all_rules;

// Every family of rules, each in the file of its name. all_rules.cpp calls
// them: adding a family is a name here and a line there.
AddRules add_pointwise_rules, add_matrix_rules, add_reduction_rules,
    add_view_rules, add_copy_rules, add_join_rules, add_nn_rules,
    add_embedding_rules, add_bag_rules;

}  // namespace tessera::detail
