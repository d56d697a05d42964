// The search among the rows of a rule: one row for each mesh dimension.
#pragma once

#include <optional>

#include "plan/priced_rows.h"

namespace tessera::detail {

// The cheapest candidate; the first of equals; nullopt if none holds. A mesh
// dimension on which some row takes the inputs as they lie keeps to such rows
// as long as a candidate with them holds: what is right already is not moved to
// make the move of another mesh dimension cheaper. A row that makes a pending
// reduction larger is no such row: it has to be cheaper than reducing first.
std::optional<Candidate> cheapest_candidate(const PricedRows& rows);

}  // namespace tessera::detail
