#include <torch/csrc/autograd/function.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <mutex>
#include <ostream>
#include <tuple>

#include "api/module_path.h"
#include "api/text_table.h"
#include "comm/comm_event.h"
#include "tessera/debug.h"

namespace tessera {

namespace {

// "Float[8, 5] on [S(0)], Float[5] on [R]": all lie on one mesh.
std::string layouts_of(c10::ArrayRef<SpecPtr> arguments) {
  std::string text;
  for (const auto& spec : arguments) {
    if (spec != nullptr) {
      text += c10::str(
          text.empty() ? "" : ", ",
          c10::toString(spec->dtype),
          SizesRef(spec->sizes),
          " on ",
          to_string(spec->placements));
    }
  }
  return text;
}

template <typename Key, typename Field>
auto sum_by(const std::vector<CommRecord>& records, Key key, Field field) {
  std::map<std::string, int64_t> sums;
  for (const auto& record : records) {
    sums[record.*key] += record.*field;
  }
  return sums;
}

}  // namespace

class CommDebugMode::Counter final : public detail::CommObserver {
 public:
  Counter() { detail::add_comm_observer(this); }
  ~Counter() override { detail::remove_comm_observer(this); }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  void on_collective(const detail::CommEvent& event) override {
    // Asked here, on the thread that issues the collective.
    CommRecord found{
        std::string(event.cause),
        torch::autograd::get_current_node() != nullptr,
        std::string(event.collective),
        event.group_size,
        0,
        0,
        detail::current_module_path(),
        layouts_of(event.arguments),
        {}};
    const std::lock_guard lock(mutex_);
    auto& record = find_or_add(std::move(found));
    record.count += 1;
    for (size_t i = 0; i < event.ranks.size(); ++i) {
      record.bytes_by_rank[event.ranks[i]] += event.bytes[i];
    }
    record.bytes += event.bytes.empty() ? 0 : event.bytes[0];
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
  CommRecord& find_or_add(CommRecord record) {
    const auto kind = [](const CommRecord& r) {
      return std::tie(
          r.op, r.backward, r.collective, r.group_size, r.module, r.arguments);
    };
    const auto found =
        std::find_if(records_.begin(), records_.end(), [&](const auto& r) {
          return kind(r) == kind(record);
        });
    return found != records_.end() ? *found
                                   : records_.emplace_back(std::move(record));
  }

  const detail::RememberModulePaths remember_;
  mutable std::mutex mutex_;
  std::vector<CommRecord> records_;
};

CommDebugMode::CommDebugMode() : counter_(std::make_unique<Counter>()) {}

CommDebugMode::CommDebugMode(const torch::nn::Module& module)
    : CommDebugMode() {
  for (const auto& parameter : module.named_parameters()) {
    name_parameter(parameter.value(), parameter.key());
  }
}

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
  return sum_by(get_records(), &CommRecord::collective, &CommRecord::count);
}

std::map<std::string, int64_t> CommDebugMode::get_comm_bytes() const {
  return sum_by(get_records(), &CommRecord::collective, &CommRecord::bytes);
}

std::map<int64_t, int64_t> CommDebugMode::get_comm_bytes_by_rank() const {
  std::map<int64_t, int64_t> sums;
  for (const auto& record : get_records()) {
    for (const auto& [rank, bytes] : record.bytes_by_rank) {
      sums[rank] += bytes;
    }
  }
  return sums;
}

std::string CommDebugMode::generate_comm_debug_tracing_table() const {
  using detail::Align;
  const auto records = get_records();
  if (records.empty()) {
    return "no collectives\n";
  }
  // Many programs name no modules.
  const bool modules =
      std::any_of(records.begin(), records.end(), [](const auto& record) {
        return !record.module.empty();
      });
  std::vector<Align> columns;
  const auto row = [&](std::string op,
                       std::string module,
                       std::string pass,
                       std::string collective,
                       std::string ranks,
                       int64_t count,
                       int64_t bytes,
                       std::string arguments) {
    std::vector<std::string> cells{std::move(op)};
    if (modules) {
      cells.push_back(std::move(module));
    }
    cells.insert(
        cells.end(),
        {std::move(pass),
         std::move(collective),
         std::move(ranks),
         std::to_string(count),
         std::to_string(bytes),
         std::move(arguments)});
    return cells;
  };
  std::vector<std::vector<std::string>> rows{
      row("op", "module", "pass", "collective", "ranks", 0, 0, "arguments")};
  *(rows[0].end() - 3) = "count";
  *(rows[0].end() - 2) = "bytes sent";
  int64_t count = 0;
  int64_t bytes = 0;
  for (const auto& record : records) {
    count += record.count;
    bytes += record.bytes;
    rows.push_back(
        row(record.op.empty() ? "-" : record.op,
            record.module,
            record.backward ? "backward" : "forward",
            record.collective,
            std::to_string(record.group_size),
            record.count,
            record.bytes,
            record.arguments));
  }
  rows.push_back(row("total", "", "", "", "", count, bytes, ""));
  columns.assign(rows[0].size() - 4, Align::Left);
  columns.insert(columns.end(), 3, Align::Right);
  columns.push_back(Align::Left);
  return detail::text_table(columns, rows);
}

std::ostream& operator<<(std::ostream& out, const CommDebugMode& mode) {
  return out << mode.generate_comm_debug_tracing_table();
}

}  // namespace tessera
