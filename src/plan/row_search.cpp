#include "plan/row_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace tessera::detail {
namespace {

// More combinations of rows than this are not all tried.
constexpr size_t kMaxCombinations = 512;

using Numbers = c10::SmallVector<uint32_t, 16>;
using CandidateRows = c10::SmallVector<Numbers, 2>;  // one a mesh dimension
using Odometer = c10::SmallVector<size_t, 4>;

// The next combination of one number from each list, the last list fastest;
// false after the last.
bool advance(Odometer& odometer, const CandidateRows& lists) {
  for (size_t m = odometer.size(); m-- > 0;) {
    if (++odometer[m] < lists[m].size()) {
      return true;
    }
    odometer[m] = 0;
  }
  return false;
}

Candidate read(const Odometer& odometer, const CandidateRows& lists) {
  Candidate candidate;
  for (size_t m = 0; m < odometer.size(); ++m) {
    candidate.push_back(lists[m][odometer[m]]);
  }
  return candidate;
}

// The rows that may be picked on a mesh dimension; of those, where `exact_only`
// says so, the ones that take the inputs as they lie there. Not those that make
// a pending reduction larger: to reduce first may be cheaper.
Numbers rows_for(const PricedRows& rows, size_t mesh_dim, bool exact_only) {
  Numbers numbers;
  for (uint32_t r = 0; r < rows.row_count(); ++r) {
    const Row& row = rows.row(r);
    const bool wanted = !exact_only || (rows.exact(row, mesh_dim) &&
                                        !rows.grows(row, mesh_dim));
    if (wanted && rows.refusal(row, mesh_dim) == nullptr) {
      numbers.push_back(r);
    }
  }
  return numbers;
}

// Leaves a mesh dimension the `kept` rows that cost least there while the
// others stay as they are. The all-replicate row stays among them: it holds
// whatever the others are.
void shorten(
    const PricedRows& rows, Numbers& numbers, size_t mesh_dim, size_t kept) {
  if (numbers.size() <= kept) {
    return;
  }
  const auto replicate = static_cast<uint32_t>(rows.row_count() - 1);
  const bool has_replicate = numbers.back() == replicate;
  std::vector<std::pair<double, uint32_t>> priced;
  for (const uint32_t r : numbers) {
    priced.emplace_back(rows.price_alone(rows.row(r), mesh_dim), r);
  }
  std::sort(priced.begin(), priced.end());
  numbers.clear();
  for (size_t i = 0; i < kept; ++i) {
    numbers.push_back(priced[i].second);
  }
  if (has_replicate &&
      std::find(numbers.begin(), numbers.end(), replicate) == numbers.end()) {
    numbers.back() = replicate;
  }
}

std::optional<Candidate> cheapest(
    const PricedRows& rows, CandidateRows candidates) {
  size_t combinations = 1;
  for (const Numbers& numbers : candidates) {
    combinations =
        std::min(combinations * numbers.size(), 2 * kMaxCombinations);
  }
  if (combinations == 0) {
    return std::nullopt;
  }
  if (combinations > kMaxCombinations) {
    const double root = 1.0 / static_cast<double>(rows.ndim());
    const auto kept =
        static_cast<size_t>(std::pow(kMaxCombinations, root) + 1e-9);
    for (size_t m = 0; m < rows.ndim(); ++m) {
      shorten(rows, candidates[m], m, std::max<size_t>(2, kept));
    }
  }
  std::optional<Candidate> best;
  double bound = std::numeric_limits<double>::infinity();
  Odometer odometer(rows.ndim(), 0);
  do {
    Candidate candidate = read(odometer, candidates);
    const Price found = rows.price(candidate, bound);
    if (found.refusal == nullptr && found.total < bound) {
      bound = found.total;
      best = std::move(candidate);
    }
  } while (bound > 0 && advance(odometer, candidates));
  return best;
}

}  // namespace

std::optional<Candidate> cheapest_candidate(const PricedRows& rows) {
  CandidateRows candidates(rows.ndim());
  bool restricted = false;
  for (size_t m = 0; m < rows.ndim(); ++m) {
    candidates[m] = rows_for(rows, m, true);
    restricted = restricted || !candidates[m].empty();
    if (candidates[m].empty()) {
      candidates[m] = rows_for(rows, m, false);
    }
  }
  std::optional<Candidate> candidate = cheapest(rows, candidates);
  if (!candidate && restricted) {
    for (size_t m = 0; m < rows.ndim(); ++m) {
      candidates[m] = rows_for(rows, m, false);
    }
    candidate = cheapest(rows, candidates);
  }
  return candidate;
}

}  // namespace tessera::detail
