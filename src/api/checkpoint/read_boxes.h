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
  // The boxes of those that load the tensor together, this one the `self`th:
  // each chunk is verified by one of those that read it. Empty: all are
  // verified here.
  std::vector<Box> shared = {};
  size_t self = 0;
};

// Fills them all. Reads the chunks that the boxes touch and no others, each
// with one call, straight into place where a chunk is whole and contiguous
// there; takes bytes out of a mapped chunk elsewhere. Verifies checksums.
// Throws c10::Error, which names file and tensor. Takes as many threads as ATen
// does.
void read_boxes(const Source& source, const std::vector<BoxTarget>& targets);

}  // namespace tessera::detail
