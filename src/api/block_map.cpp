#include "api/block_map.h"

#include <algorithm>
#include <map>

#include "dispatch/tensor.h"

namespace tessera::detail {

namespace {

std::vector<Range> ranges_of(const Spec& spec, int64_t position) {
  std::vector<Range> ranges;
  for (int64_t d = 0; d < spec.dim(); ++d) {
    ranges.push_back(
        local_range(spec.sizes[d], d, spec.mesh, spec.placements, position));
  }
  return ranges;
}

bool is_empty(const std::vector<Range>& ranges) {
  return std::any_of(ranges.begin(), ranges.end(), [](const Range& range) {
    return range.size == 0;
  });
}

// The names of the reductions that are pending, "sum" or "sum/avg"; "" where
// none is.
std::string pending(const Spec& spec) {
  std::string names;
  for (const auto& placement : spec.placements) {
    if (!placement.is_partial()) {
      continue;
    }
    const std::string name(tessera::to_string(placement.reduce_op()));
    if (names.find(name) == std::string::npos) {
      names += (names.empty() ? "" : "/") + name;
    }
  }
  return names;
}

std::string label_of(const Spec& spec, const std::vector<int64_t>& positions) {
  const auto ranks = spec.mesh.all_ranks();
  const std::string reduction = pending(spec);
  if (reduction.empty()) {
    std::vector<int64_t> holders;
    holders.reserve(positions.size());
    for (const int64_t position : positions) {
      holders.push_back(ranks[position]);
    }
    std::sort(holders.begin(), holders.end());
    return rank_list(holders);
  }
  // The terms of one reduction differ only on its mesh dimensions, and belong
  // to one copy of a sliced mesh.
  std::map<std::vector<int64_t>, std::vector<int64_t>> groups;
  for (const int64_t position : positions) {
    std::vector<int64_t> key{spec.mesh.ranks(ranks[position])[0]};
    for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
      const bool partial = spec.placements[m].is_partial();
      key.push_back(partial ? -1 : spec.mesh.coordinate(position, m));
    }
    groups[key].push_back(ranks[position]);
  }
  std::string label;
  for (auto& [key, terms] : groups) {
    std::sort(terms.begin(), terms.end());
    label +=
        (label.empty() ? "" : ",") + reduction + "(" + rank_list(terms) + ")";
  }
  return label;
}

// The number of a combination of ranges among the blocks.
size_t block_index(const BlockMap& map, const std::vector<Range>& ranges) {
  size_t index = 0;
  for (size_t d = 0; d < ranges.size(); ++d) {
    const auto& parts = map.ranges[d];
    const auto found = std::find(parts.begin(), parts.end(), ranges[d]);
    index = index * parts.size() + static_cast<size_t>(found - parts.begin());
  }
  return index;
}

}  // namespace

const Spec& spec_of(const at::Tensor& tensor, const char* caller) {
  TORCH_CHECK_TYPE(
      is_dtensor(tensor),
      "[",
      caller,
      "] expected a distributed tensor, got ",
      tensor.defined() ? "a plain one" : "an undefined one",
      ": make one with distribute_tensor or DTensor::from_local");
  return *distributed_meta(tensor).spec;
}

BlockMap block_map(const Spec& spec) {
  BlockMap map;
  const auto ranks = spec.mesh.all_ranks();
  std::vector<std::vector<Range>> held;
  map.ranges.resize(spec.dim());
  for (size_t position = 0; position < ranks.size(); ++position) {
    held.push_back(ranges_of(spec, static_cast<int64_t>(position)));
    for (int64_t d = 0; d < spec.dim(); ++d) {
      const auto& range = held.back()[d];
      if (range.size > 0) map.ranges[d].push_back(range);
    }
  }
  size_t count = 1;
  for (auto& parts : map.ranges) {
    const auto before = [](const Range& a, const Range& b) {
      return a.begin < b.begin;
    };
    std::sort(parts.begin(), parts.end(), before);
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    count *= parts.size();
  }
  map.blocks.resize(count);
  std::vector<std::vector<int64_t>> positions(count);
  for (size_t position = 0; position < ranks.size(); ++position) {
    if (is_empty(held[position])) {
      map.empty_ranks.push_back(ranks[position]);
      continue;
    }
    const size_t index = block_index(map, held[position]);
    map.blocks[index].ranges = held[position];
    map.blocks[index].ranks.push_back(ranks[position]);
    positions[index].push_back(static_cast<int64_t>(position));
  }
  for (size_t i = 0; i < count; ++i) {
    map.blocks[i].label = label_of(spec, positions[i]);
  }
  std::sort(map.empty_ranks.begin(), map.empty_ranks.end());
  return map;
}

std::string to_string(const Range& range) {
  return std::to_string(range.begin) + ":" +
         std::to_string(range.begin + range.size);
}

std::string rank_list(const std::vector<int64_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(ranks[i]);
    if (end - i >= 3) {
      text += "-" + std::to_string(ranks[end - 1]);
      i = end;
    } else {
      ++i;
    }
  }
  return text;
}

}  // namespace tessera::detail
