#include "comm/assumed_shapes.h"

#include <unordered_map>

#include "core/hash.h"

namespace tessera::detail {

namespace {

// By hash of the mesh, which is that of its value: a mesh that is made again
// goes on where it was, on every rank.
using Fingerprints = std::unordered_map<size_t, uint64_t>;

Fingerprints& fingerprints() {
  thread_local Fingerprints by_mesh;
  return by_mesh;
}

}  // namespace

void assume_shape(const DeviceMesh& mesh, c10::ArrayRef<int64_t> shape) {
  auto& fingerprint = fingerprints()[mesh.hash()];
  fingerprint = hash_combine(fingerprint, shape);
}

uint16_t assumed_shapes(const DeviceMesh& mesh) {
  const auto& all = fingerprints();
  if (all.empty()) {
    return 0;
  }
  const auto found = all.find(mesh.hash());
  return found == all.end() ? 0 : static_cast<uint16_t>(found->second);
}

}  // namespace tessera::detail
