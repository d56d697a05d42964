// Ops that work along one dimension and keep the shape: sorts, scans, softmax.
#pragma once

#include "rules/rule_table.h"
#include "tessera/rule.h"

namespace tessera::detail {

// Rows that shard all operands and results alike, along any dimension but the
// call's `dim`. Requires: the operands have the shape of the first.
Rows dimwise_rows(const OpCall& call);

// Adds the rules of sorts and scans.
void add_dimwise_rules(RuleTable& table);

}  // namespace tessera::detail
