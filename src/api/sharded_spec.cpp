#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "tessera/sharded.h"

namespace tessera {

ShardPlacement::ShardPlacement(std::string_view text) : rank(-1) {
  constexpr std::string_view kRank = "rank:";
  const auto slash = text.find('/');
  const auto number = text.substr(
      std::min(kRank.size(), text.size()),
      std::min(slash, text.size()) - std::min(kRank.size(), text.size()));
  const char* const end = number.data() + number.size();
  const auto parsed = std::from_chars(number.data(), end, rank);
  TORCH_CHECK_VALUE(
      text.starts_with(kRank) && parsed.ec == std::errc() &&
          parsed.ptr == end && rank >= 0 &&
          (slash == std::string_view::npos || slash + 1 < text.size()),
      "[ChunkShardingSpec] a placement must be a rank or a text like "
      "rank:2/cpu, not ",
      text);
  if (slash != std::string_view::npos) {
    // The index of a device is the process's own business.
    const auto device = text.substr(slash + 1);
    device_type = std::string(device.substr(0, device.find(':')));
  }
}

std::string ShardPlacement::str() const {
  return "rank:" + std::to_string(rank) + "/" + device_type;
}

ChunkShardingSpec::ChunkShardingSpec(int64_t d, std::vector<ShardPlacement> p)
    : dim(d), placements(std::move(p)) {
  TORCH_CHECK_VALUE(
      !placements.empty(),
      "[ChunkShardingSpec] there must be at least one placement");
  for (const auto& placement : placements) {
    TORCH_CHECK_VALUE(
        placement.device_type == placements[0].device_type,
        "[ChunkShardingSpec] all shards must be on one kind of device, but ",
        placements[0].str(),
        " and ",
        placement.str(),
        " were given");
  }
}

std::string ChunkShardingSpec::str() const {
  std::ostringstream out;
  out << "ChunkShardingSpec(dim=" << dim << ", placements=[";
  for (size_t i = 0; i < placements.size(); ++i) {
    out << (i == 0 ? "" : ", ") << placements[i].str();
  }
  out << "])";
  return out.str();
}

}  // namespace tessera
