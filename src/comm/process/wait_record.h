// What a rank tells the others of its long waits.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::detail {

// A thread waits in a call of a group.
struct RankWait {
  uint64_t thread = 0;
  // Unlike that of any other wait of the rank.
  uint64_t number = 0;
  std::string group;  // "cpu [0, 2]"
  uint32_t call = 0;  // its number in the group
  std::string collective;
  std::vector<int64_t> awaited;  // ranks of the world
};

// How many calls of a group the rank has begun, and the thread of the last.
struct GroupCalls {
  uint32_t count = 0;
  uint64_t thread = 0;
};

struct WaitRecord {
  // Counts what the rank has told: it waits for as long as it says so again.
  uint64_t beat = 0;
  std::vector<RankWait> waits;
  std::map<std::string, GroupCalls> groups;
  // The threads that make calls, by device type.
  std::map<std::string, std::vector<uint64_t>> callers;
  // Ranks and numbers of waits that were found to wait for each other.
  std::vector<std::pair<int64_t, uint64_t>> stuck;
  // With which a collective has failed, by device type; none was called since.
  std::map<std::string, std::string> errors;

  const RankWait* wait_of(uint64_t thread) const;

  std::string str() const;
  // Nothing if it is none.
  static std::optional<WaitRecord> parse(const std::string& text);
};

// The device type of a group: "cpu" of "cpu [0, 2]".
std::string device_of(const std::string& group);

}  // namespace tessera::detail
