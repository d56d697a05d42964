// What the flight recorder holds, for those that write it out.
#pragma once

#include <string>
#include <vector>

#include "comm/flight_recorder.h"

namespace tessera::detail {

struct FlightGroup {
  std::string name;
  std::vector<int64_t> ranks;
};

// The records that there are, the oldest first. Safe while others record.
std::vector<FlightRecord> flights();
// By the number in a record.
std::vector<FlightGroup> flight_groups();

}  // namespace tessera::detail
