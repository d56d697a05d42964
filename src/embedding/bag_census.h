// What ranks tell each other before bags are exchanged: how much goes where,
// what comes with it, and whether something is wrong.
#pragma once

#include <vector>

#include "comm/collectives.h"
#include "embedding/bag_lookup.h"

namespace tessera::detail {

// What one rank tells one other. All members are sent: 8 bytes each.
struct BagNotice {
  // Of what goes to that rank.
  int64_t indices = 0;
  int64_t bags = 0;
  int64_t rows = 0;  // distinct ones
  // Of what goes to all other ranks.
  int64_t all_indices = 0;
  int64_t all_bags = 0;
  int64_t all_rows = 0;
  // The most entries that a bag has.
  int64_t longest = 0;
  int64_t flags = 0;
  int64_t fingerprint = 0;

  static constexpr int64_t kLocalError = 1;  // throw: the others learn why
  static constexpr int64_t kPerSampleWeights =
      2;                                    // entries have per_sample_weights
  static constexpr int64_t kGradient = 4;   // which need a gradient
  static constexpr int64_t kPadding = 8;    // some entries are padding
  static constexpr int64_t kRecorded = 16;  // there will be a backward pass
};

// The flags of what a rank looks up, but for kPadding.
int64_t bag_flags(
    const RankBags& bags, const LocalError& error, const BagWants& wants);

// What a rank has been told, by the coordinate of who told it, itself included.
using BagNotices = std::vector<BagNotice>;

// Swaps the notices of the group: notices[i][c] is what local position i tells
// rank c. Throws the first rank's error, or c10::ValueError where queries
// differ or some ranks record gradients and others do not, on every rank alike.
// One all-to-all of 72 bytes a pair; an agreement besides if there is a
// error, which every group along `at` then has.
std::vector<BagNotices> swap_notices(
    MeshDim at,
    c10::ArrayRef<BagNotices> notices,
    const LocalError& error,
    const char* caller);

// Whether any rank has raised the flag.
bool any_flag(const BagNotices& told, int64_t flag);

}  // namespace tessera::detail
