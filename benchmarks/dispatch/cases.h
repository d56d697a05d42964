// The ops that are measured: each as a plain call and as the same call on
// distributed tensors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/mesh.h"

namespace tessera::bench {

struct Case {
  std::string name;
  std::function<void()>
      plain;  // does nothing where plain tensors have no such op
  std::function<void()> ours;
};

// On 4x4 floats, those of `ours` laid out S(0) over `mesh` (the second matrix
// of mm is replicated). Requires: one rank of the mesh lives here.
std::vector<Case> dispatch_cases(const DeviceMesh& mesh);

}  // namespace tessera::bench
