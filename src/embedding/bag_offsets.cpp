#include "embedding/bag_offsets.h"

#include "core/hash.h"
#include "dispatch/agreement.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

// The offsets as int64 on the CPU; undefined where there are no data here.
at::Tensor readable_offsets(const BagCall& call) {
  const auto& shards = current_shards(call.args.offsets);
  return shards.empty() || shards[0].is_meta()
             ? at::Tensor()
             : shards[0].to(c10::kCPU, at::kLong).contiguous();
}

bool are_of_equal_rows(c10::IntArrayRef offsets, int64_t entries) {
  const auto bags = static_cast<int64_t>(offsets.size());
  if (bags == 0 || entries % bags != 0) {
    return bags == 0;
  }
  for (int64_t b = 0; b < bags; ++b) {
    if (offsets[b] != b * (entries / bags)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool shards_hold_whole_bags(const BagCall& call, int64_t m) {
  const Spec& batch = *distributed_meta(call.args.indices).spec;
  const auto starts = readable_offsets(call);
  if (!starts.defined()) {
    return false;
  }
  const auto* start = starts.const_data_ptr<int64_t>();
  const int64_t bags = call.bags();
  const int64_t n = batch.sizes[0];
  // Entries after the last bag are in no chunk of bags.
  if (call.args.options.include_last_offset && bags >= 0 && start[bags] != n) {
    return false;
  }
  const int64_t ranks = batch.mesh.size(m);
  for (int64_t c = 0; c < ranks; ++c) {
    const int64_t bag = chunk(bags, ranks, c).begin;
    if (chunk(n, ranks, c).begin != (bag < bags ? start[bag] : n)) {
      return false;
    }
  }
  return true;
}

uint64_t offsets_to_compare(const BagCall& call) {
  const Spec& batch = *distributed_meta(call.args.indices).spec;
  if (!call.plain_offsets ||
      !differs_over_ranks(batch.placements, batch.mesh)) {
    return 0;
  }
  const auto offsets = readable_offsets(call);
  if (!offsets.defined()) {
    return 0;
  }
  const c10::IntArrayRef values(
      offsets.const_data_ptr<int64_t>(), offsets.numel());
  return are_of_equal_rows(values, call.args.indices.size(0))
             ? 0
             : hash_combine(0, values) | 1;
}

}  // namespace tessera::detail
