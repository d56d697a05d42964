#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <mutex>
#include <ostream>

#include "api/text_table.h"
#include "comm/comm_event.h"
#include "tessera/debug.h"

namespace tessera {

class CommDebugMode::Counter final : public detail::CommObserver {
 public:
  Counter() { detail::add_comm_observer(this); }
  ~Counter() override { detail::remove_comm_observer(this); }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  void on_collective(const detail::CommEvent& event) override {
    // Asked here, on the thread that issues the collective.
    const bool backward = torch::autograd::get_current_node() != nullptr;
    const std::lock_guard lock(mutex_);
    auto& record = find_or_add(event, backward);
    record.count += 1;
    record.bytes += event.bytes;
  }

  std::vector<CommRecord> records() const {
    const std::lock_guard lock(mutex_);
    return records_;
  }

  void reset() {
    const std::lock_guard lock(mutex_);
    records_.clear();
  }

 private:
  // A program has few kinds of collectives: no index is needed.
  CommRecord& find_or_add(const detail::CommEvent& event, bool backward) {
    const auto found =
        std::find_if(records_.begin(), records_.end(), [&](const auto& r) {
          return r.op == event.cause && r.backward == backward &&
                 r.collective == event.collective &&
                 r.group_size == event.group_size;
        });
    if (found != records_.end()) {
      return *found;
    }
    return records_.emplace_back(CommRecord{
        std::string(event.cause),
        backward,
        std::string(event.collective),
        event.group_size,
        0,
        0});
  }

  mutable std::mutex mutex_;
  std::vector<CommRecord> records_;
};

CommDebugMode::CommDebugMode() : counter_(std::make_unique<Counter>()) {}
CommDebugMode::~CommDebugMode() = default;

std::vector<CommRecord> CommDebugMode::get_records() const {
  return counter_->records();
}

void CommDebugMode::reset() { counter_->reset(); }

int64_t CommDebugMode::get_total_counts() const {
  int64_t total = 0;
  for (const auto& record : get_records()) {
    total += record.count;
  }
  return total;
}

int64_t CommDebugMode::get_total_bytes() const {
  int64_t total = 0;
  for (const auto& record : get_records()) {
    total += record.bytes;
  }
  return total;
}

std::map<std::string, int64_t> CommDebugMode::get_comm_counts() const {
  std::map<std::string, int64_t> counts;
  for (const auto& record : get_records()) {
    counts[record.collective] += record.count;
  }
  return counts;
}

std::map<std::string, int64_t> CommDebugMode::get_comm_bytes() const {
  std::map<std::string, int64_t> bytes;
  for (const auto& record : get_records()) {
    bytes[record.collective] += record.bytes;
  }
  return bytes;
}

std::string CommDebugMode::generate_comm_debug_tracing_table() const {
  using detail::Align;
  const auto records = get_records();
  if (records.empty()) {
    return "no collectives\n";
  }
  std::vector<std::vector<std::string>> rows{
      {"op", "pass", "collective", "ranks", "count", "bytes sent"}};
  int64_t count = 0;
  int64_t bytes = 0;
  for (const auto& record : records) {
    count += record.count;
    bytes += record.bytes;
    rows.push_back(
        {record.op.empty() ? "-" : record.op,
         record.backward ? "backward" : "forward",
         record.collective,
         std::to_string(record.group_size),
         std::to_string(record.count),
         std::to_string(record.bytes)});
  }
  rows.push_back(
      {"total", "", "", "", std::to_string(count), std::to_string(bytes)});
  return detail::text_table(
      {Align::Left,
       Align::Left,
       Align::Left,
       Align::Right,
       Align::Right,
       Align::Right},
      rows);
}

std::ostream& operator<<(std::ostream& out, const CommDebugMode& mode) {
  return out << mode.generate_comm_debug_tracing_table();
}

}  // namespace tessera
