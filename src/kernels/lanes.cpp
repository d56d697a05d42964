#include "kernels/lanes.h"

#include <ATen/Version.h>

#include <algorithm>
#include <atomic>
#include <string>

namespace tessera::detail {

namespace {

LaneWidth machine_width() {
  const std::string name = at::get_cpu_capability();
  if (name == "AVX512") {
    return LaneWidth::kAvx512;
  }
  return name == "AVX2" ? LaneWidth::kAvx2 : LaneWidth::kBase;
}

std::atomic<LaneWidth> limit{LaneWidth::kAvx512};

}  // namespace

LaneWidth lane_width() {
  static const LaneWidth machine = machine_width();
  return std::min(machine, limit.load(std::memory_order_relaxed));
}

LaneWidth limit_lane_width(LaneWidth most) { return limit.exchange(most); }

}  // namespace tessera::detail
