// What the ranks of a group tell each other before they exchange anything: how
// much goes where, what comes with it, and whether something is wrong. It is
// one all-to-all; what follows from it every rank finds alike.
#pragma once

#include <vector>

#include "comm/collectives.h"
#include "embedding/table_lookup.h"

namespace tessera::detail {

// What one rank tells one other of its bags. All members are sent: 8 bytes
// each.
struct BagRequest {
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

  static constexpr int64_t kLocalError = 1;        // the others learn why
  static constexpr int64_t kPerSampleWeights = 2;  // entries have weights
  static constexpr int64_t kGradient = 4;          // which need a gradient
  static constexpr int64_t kPadding = 8;           // some entries are padding
  static constexpr int64_t kRecorded = 16;  // there will be a backward pass
};

// By the coordinate of the other rank, itself included.
using BagRequests = std::vector<BagRequest>;

// One number of each of them.
Parts each_of(const BagRequests& requests, int64_t BagRequest::*number);

// The same request of a local position to each rank, with the query's
// fingerprint and all flags but kPadding.
BagRequests bag_requests(
    const LookupRequest& request, size_t local, const LocalError& error);

// The end of a handshake, the same on every rank of a group.
struct Handshake {
  std::vector<BagRequests> told;  // each local position, by each rank
  SettledLookup settled;
  // The sums of what all ranks ask of others, and the longest bag of all.
  BagRequest sum;
};

// Throws the first rank's local error, or c10::ValueError where queries differ
// or only some ranks record gradients, on every rank alike. requests[i][c] is
// what local position i tells rank c: 72 bytes a pair. An agreement besides if
// there is an error. Where the caller's ranks ask alike, only `rows` are told,
// 8 bytes a pair, and on a mesh of several dimensions the agreement comes
// first: only the group sees the counts.
Handshake shake_hands(
    MeshDim at,
    c10::ArrayRef<BagRequests> requests,
    const LocalError& error,
    const LookupCaller& caller);

}  // namespace tessera::detail
