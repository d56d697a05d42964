// Errors that only one rank may find, in what it has for itself: all ranks
// throw them, so that none waits for one that has stopped.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <string>
#include <string_view>

#include "comm/collectives.h"

namespace tessera::detail {

// What is wrong on a rank; an empty text: nothing.
struct LocalError {
  std::string text;
  ErrorKind kind = ErrorKind::Value;
};

// What `check` throws.
LocalError local_error_of(c10::function_ref<void()> check);

// Whether ranks have values of their own of this tensor, only one of which may
// be bad.
bool differs_over_ranks(PlacementsRef placements, const DeviceMesh& mesh);

// What every rank of a mesh must have been given alike: while one is alive, the
// agreements of this thread compare its fingerprint too (by an all_reduce of 24
// bytes a mesh dimension, in place of their own message), and where it differs
// every rank throws c10::ValueError with its text. Scopes do not nest.
class SameOnAllRanks {
 public:
  SameOnAllRanks(uint64_t fingerprint, const char* text);
  ~SameOnAllRanks();
  SameOnAllRanks(const SameOnAllRanks&) = delete;
  SameOnAllRanks& operator=(const SameOnAllRanks&) = delete;

  uint64_t fingerprint;
  const char* text;
};

// Runs `body`; if it throws c10::Error on some ranks of the mesh, every rank
// throws the first one's. Communicates: an agreement, counted for `cause`.
// `body` may communicate before it reads what may be bad, not after.
void run_agreed(
    const DeviceMesh& mesh,
    std::string_view cause,
    c10::function_ref<void()> body);

}  // namespace tessera::detail
