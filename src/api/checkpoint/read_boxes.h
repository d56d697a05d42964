// Reads boxes of saved tensors straight into memory.
#pragma once

#include <string>
#include <vector>

#include "api/checkpoint/source.h"

namespace tessera::detail {

// Memory that a box of a saved tensor goes to: row-major, in its dtype.
struct BoxTarget {
  std::string name;
  const SavedTensor* saved;
  Box box;
  char* memory;
};

// Fills them all. Reads the chunks that the boxes touch and no others, each
// with one call, straight into place where a chunk is whole and contiguous
// there; verifies the checksum of each. Throws c10::Error, which names file and
// tensor. Takes as many threads as ATen does.
void read_boxes(const Source& source, const std::vector<BoxTarget>& targets);

}  // namespace tessera::detail
