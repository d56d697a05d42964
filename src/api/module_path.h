// Which part of a model runs: the names that are open in a thread, and those
// that were open when a node of the autograd graph was recorded.
#pragma once

#include <c10/macros/Macros.h>

#include <string>

namespace tessera::detail {

// Paths are remembered for the backward pass while one of these is alive.
class RememberModulePaths {
 public:
  RememberModulePaths();
  ~RememberModulePaths();
  C10_DISABLE_COPY_AND_ASSIGN(RememberModulePaths);
};

// Where this thread is, forward or backward. "": nowhere that has a name.
std::string current_module_path();

}  // namespace tessera::detail
