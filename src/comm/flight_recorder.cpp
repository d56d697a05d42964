#include "comm/flight_recorder.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <exception>
#include <mutex>

#include "comm/flight_store.h"

namespace tessera::detail {

namespace {

// A record in words, so that it may be read while it is written.
constexpr size_t kWords = sizeof(FlightRecord) / sizeof(uint64_t);
using Words = std::array<uint64_t, kWords>;
constexpr size_t kIdWord = offsetof(FlightRecord, id) / sizeof(uint64_t);
constexpr size_t kEndWord = offsetof(FlightRecord, ended_ns) / sizeof(uint64_t);
static_assert(sizeof(FlightRecord) == 96);

struct Slot {
  std::array<std::atomic<uint64_t>, kWords> words{};
};

struct Recorder {
  std::atomic<uint64_t> last = 0;
  std::array<Slot, kFlightsKept> slots;
  std::mutex mutex;  // of the groups
  std::vector<FlightGroup> groups;
};

Recorder& recorder() {
  // Never deleted: collectives may end after static variables.
  static auto* const instance = new Recorder;
  return *instance;
}

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() /
         std::chrono::nanoseconds(1);
}

}  // namespace

Flight::Flight(
    uint32_t group,
    uint32_t sequence,
    const char* collective,
    int64_t bytes,
    std::string_view cause,
    std::chrono::steady_clock::time_point began)
    : id_(recorder().last.fetch_add(1, std::memory_order_relaxed) + 1) {
  FlightRecord record{
      id_,
      group,
      sequence,
      collective,
      bytes,
      began.time_since_epoch() / std::chrono::nanoseconds(1)};
  cause.copy(record.cause.data(), record.cause.size() - 1);
  const auto words = std::bit_cast<Words>(record);
  auto& slot = recorder().slots[id_ % kFlightsKept].words;
  // Without a number while it is half written: who reads a new word reads that
  // there is none, or a new one.
  slot[kIdWord].store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < kWords; ++i) {
    if (i != kIdWord) slot[i].store(words[i], std::memory_order_release);
  }
  slot[kIdWord].store(id_, std::memory_order_release);
}

void Flight::end(bool failed) const {
  auto& slot = recorder().slots[id_ % kFlightsKept].words;
  // Another may have taken the place.
  if (slot[kIdWord].load(std::memory_order_relaxed) != id_) return;
  const int64_t now = now_ns();
  slot[kEndWord].store(
      static_cast<uint64_t>(failed ? -now : now), std::memory_order_relaxed);
}

FlightScope::FlightScope(Flight flight)
    : flight_(flight), exceptions_(std::uncaught_exceptions()) {}

FlightScope::~FlightScope() {
  flight_.end(std::uncaught_exceptions() > exceptions_);
}

std::vector<FlightRecord> flights() {
  std::vector<FlightRecord> out;
  for (const auto& [slot] : recorder().slots) {
    const uint64_t id = slot[kIdWord].load(std::memory_order_acquire);
    if (id == 0) continue;
    Words words;
    for (size_t i = 0; i < kWords; ++i) {
      words[i] = slot[i].load(std::memory_order_acquire);
    }
    // Overwritten meanwhile.
    if (slot[kIdWord].load(std::memory_order_relaxed) != id) continue;
    words[kIdWord] = id;
    out.push_back(std::bit_cast<FlightRecord>(words));
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.id < b.id;
  });
  return out;
}

std::vector<FlightGroup> flight_groups() {
  const std::lock_guard<std::mutex> lock(recorder().mutex);
  return recorder().groups;
}

uint32_t new_flight_group(
    const std::string& name, const std::vector<int64_t>& ranks) {
  auto& groups = recorder().groups;
  const std::lock_guard<std::mutex> lock(recorder().mutex);
  const auto before = std::count_if(
      groups.begin(), groups.end(), [&](const FlightGroup& group) {
        return group.name == name || group.name.starts_with(name + " (");
      });
  groups.push_back(
      {before == 0 ? name : name + " (" + std::to_string(before + 1) + ")",
       ranks});
  return static_cast<uint32_t>(groups.size() - 1);
}

}  // namespace tessera::detail
