// What the rules of views share.
#pragma once

#include <functional>
#include <optional>

#include "rules/rule_table.h"
#include "tessera/rule.h"

namespace tessera::detail {

// Rows that shard the only operand along each dimension that survives: `moved`
// says where in the result it stands, nullopt if it does not or is changed.
Rows moved_rows(
    const OpCall& call,
    const std::function<std::optional<int64_t>(int64_t)>& moved);

// Adds the rules of views that shorten or drop a dimension, and their
// gradients.
void add_slice_rules(RuleTable& table);

}  // namespace tessera::detail
