#include "rules/rule_table.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "rules/rows.h"

namespace tessera::detail {
namespace {

// "aten::add" and "aten::add.Tensor" are names; "add" and "aten::" are not.
bool well_formed(std::string_view op) {
  const size_t colons = op.find("::");
  return colons != std::string_view::npos && colons > 0 &&
         colons + 2 < op.size() && op[colons + 2] != '.' &&
         op.find_first_of(" (") == std::string_view::npos;
}

// How the overload that writes the results of another is called: "x.y_out".
constexpr std::string_view kOut = "_out";

}  // namespace

struct RuleTable::Impl {
  // Lets the map be asked with a string_view, without making a string.
  struct NameHash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const {
      return std::hash<std::string_view>()(name);
    }
  };
  mutable std::shared_mutex mutex;
  // Nodes of an unordered_map never move, so that pointers to rules stay valid.
  std::unordered_map<std::string, Rule, NameHash, std::equal_to<>> rules;
};

RuleTable::RuleTable() : impl_(std::make_unique<Impl>()) {}
RuleTable::~RuleTable() = default;

void RuleTable::add(std::string_view op, Rule rule) {
  TORCH_CHECK_VALUE(
      well_formed(op),
      "[register_rule] expected an op as \"namespace::name\" or "
      "\"namespace::name.overload\", but got \"",
      std::string(op),
      "\"");
  rule.rows = [rows = std::move(rule.rows)](const OpCall& call) {
    return place_outs(call, rows(call));
  };
  const std::unique_lock lock(impl_->mutex);
  const bool added =
      impl_->rules.try_emplace(std::string(op), std::move(rule)).second;
  TORCH_CHECK_VALUE(
      added,
      "[register_rule] ",
      std::string(op),
      " has a rule already; a rule for one of its overloads "
      "(\"namespace::name.overload\") may stand beside it");
}

void RuleTable::add(
    std::initializer_list<std::string_view> ops, const Rule& rule) {
  for (const std::string_view op : ops) {
    add(op, rule);
  }
}

const Rule* RuleTable::find(std::string_view op) const {
  const std::shared_lock lock(impl_->mutex);
  auto found = impl_->rules.find(op);
  if (found == impl_->rules.end() && op.ends_with(kOut)) {
    found = impl_->rules.find(op.substr(0, op.size() - kOut.size()));
  }
  if (found == impl_->rules.end()) {
    found = impl_->rules.find(op.substr(0, op.find('.')));
  }
  return found == impl_->rules.end() ? nullptr : &found->second;
}

std::vector<std::string> RuleTable::names() const {
  std::vector<std::string> names;
  {
    const std::shared_lock lock(impl_->mutex);
    names.reserve(impl_->rules.size());
    for (const auto& [name, rule] : impl_->rules) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

RuleTable& rule_table() {
  // Never destroyed: ops may still run in the destructors of static objects.
  static RuleTable* const table = [] {
    auto* built_in = new RuleTable();
    add_all_rules(*built_in);
    return built_in;
  }();
  return *table;
}

std::string op_display_name(const c10::FunctionSchema& schema) {
  std::string name = schema.name();
  const size_t colons = name.find("::");
  if (colons != std::string::npos) {
    name.replace(colons, 2, ".");
  }
  name += '.';
  name += schema.overload_name().empty() ? "default" : schema.overload_name();
  return name;
}

}  // namespace tessera::detail
