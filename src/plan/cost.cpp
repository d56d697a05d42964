#include "plan/cost.h"

#include <c10/util/Exception.h>

namespace tessera::detail {
namespace {

// Orders of magnitude of a fast network and of memory: what counts is that a
// collective is dear, that its bytes are dearer than copied ones, and that a
// step fewer wins between equals.
constexpr double kCollectiveStart = 30;      // microseconds
constexpr double kSentBytesPerUs = 1000;     // 1 GB/s
constexpr double kCopyStart = 0.5;           // microseconds
constexpr double kCopiedBytesPerUs = 10000;  // 10 GB/s

double collective(double bytes) {
  return kCollectiveStart + bytes / kSentBytesPerUs;
}

double copy(double bytes) { return kCopyStart + bytes / kCopiedBytesPerUs; }

}  // namespace

double step_cost(Step::Kind kind, int64_t local_bytes, int64_t group) {
  if (group <= 1) {
    return 0;
  }
  const auto bytes = static_cast<double>(local_bytes);
  const auto ranks = static_cast<double>(group);
  // What a rank gives away of its own when all take an equal share.
  const double given = bytes * (ranks - 1) / ranks;
  switch (kind) {
    case Step::Kind::AllGather:
      return collective(bytes * (ranks - 1));
    case Step::Kind::AllToAll:
    case Step::Kind::ReduceScatter:
      return collective(given);
    case Step::Kind::AllReduce:
      return collective(2 * given);
    case Step::Kind::Slice:
      return copy(bytes / ranks);
    case Step::Kind::ToPartial:
      return copy(bytes);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown kind of step");
}

int64_t largest_shard_bytes(
    const DeviceMesh& mesh,
    SizesRef sizes,
    int64_t element_size,
    PlacementsRef placements) {
  const c10::ArrayRef<int64_t> shape = mesh.shape();
  int64_t bytes = element_size;
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t n = sizes[d];
    for (size_t m = 0; m < placements.size(); ++m) {
      if (placements[m].is_shard(static_cast<int64_t>(d))) {
        n = (n + shape[m] - 1) / shape[m];
      }
    }
    bytes *= n;
  }
  return bytes;
}

}  // namespace tessera::detail
