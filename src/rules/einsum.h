// Rules of sums of products, read off their index notation.
#pragma once

#include <string_view>

#include "tessera/rule.h"

namespace tessera::detail {

// "mk,kn->mn": one letter a dimension. A letter of the result may be sharded in
// every operand that has it; a letter that is summed over gives a pending sum.
// An operand may itself be a pending sum while the others are replicated.
// Requires: two operands, and no letter twice in one of them.
Rule einsum_rule(std::string_view formula);

// The same for ops that add their first operand, which broadcasts to the
// result: addmm(self, mat1, mat2) is biased_einsum_rule("mk,kn->mn").
Rule biased_einsum_rule(std::string_view formula);

}  // namespace tessera::detail
