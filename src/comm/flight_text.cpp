// The flight record as text: lines for errors, JSON for tools.
#include <algorithm>
#include <cstdlib>

#include "comm/flight_store.h"

namespace tessera::detail {

namespace {

// torch's analyzer knows these names only. Those that end in _v may be uneven.
const char* torch_name(std::string_view collective) {
  if (collective == "all_gather" || collective == "agree") {
    return "all_gather_v";
  }
  if (collective == "reduce_scatter") return "reduce_scatter_v";
  if (collective.starts_with("all_to_all")) return "all_to_all";
  if (collective == "broadcast") return "broadcast";
  if (collective == "scatter") return "scatter";
  if (collective == "all_reduce") return "all_reduce";
  return "barrier";
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string joined(const std::vector<int64_t>& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    out += (i > 0 ? ", " : "") + std::to_string(values[i]);
  }
  return out + "]";
}

class EntryWriter {
 public:
  explicit EntryWriter(std::vector<FlightGroup> groups)
      : groups_(std::move(groups)) {
    using namespace std::chrono;
    // From the steady clock to the time since the epoch.
    shift_ns_ = (system_clock::now().time_since_epoch() -
                 steady_clock::now().time_since_epoch()) /
                nanoseconds(1);
  }

  std::string groups() {
    text_ = "{";
    for (const auto& [name, ranks] : groups_) {
      if (text_.size() > 1) text_ += ", ";
      text_ += in_quotes(name) + ": {";
      comma_ = "";
      quoted("name", name);
      quoted("desc", name);
      quoted("ranks", joined(ranks));
      text_ += "}";
    }
    return text_ + "}";
  }

  std::string entry(const FlightRecord& record) {
    const auto& group = groups_[record.group].name;
    const auto sizes = "[[" + std::to_string(record.bytes) + "]]";
    const bool done = record.ended_ns != 0;
    text_ = "{";
    comma_ = "";
    number("record_id", static_cast<int64_t>(record.id));
    number("pg_id", record.group);
    raw("process_group",
        "[" + in_quotes(group) + ", " + in_quotes(group) + "]");
    number("collective_seq_id", record.sequence);
    number("p2p_seq_id", 0);
    number("op_id", static_cast<int64_t>(record.id));
    quoted(
        "profiling_name", std::string("gloo:") + torch_name(record.collective));
    quoted("collective", record.collective);
    number("bytes", record.bytes);
    number("time_created_ns", record.began_ns + shift_ns_);
    number("time_discovered_started_ns", record.began_ns + shift_ns_);
    raw("time_discovered_completed_ns",
        done ? std::to_string(std::abs(record.ended_ns) + shift_ns_) : "null");
    // What failed has not been completed.
    quoted("state", record.ended_ns > 0 ? "completed" : "started");
    raw("failed", record.ended_ns < 0 ? "true" : "false");
    raw("input_sizes", sizes);
    raw("output_sizes", sizes);
    raw("input_dtypes", "[\"Byte\"]");
    raw("output_dtypes", "[\"Byte\"]");
    raw("retired", done ? "true" : "false");
    raw("is_p2p", "false");
    number("timeout_ms", 0);
    raw("frames",
        "[{\"name\": " + in_quotes(record.cause.data()) +
            ", \"filename\": \"\", \"line\": 0}]");
    return text_ + "}";
  }

 private:
  void raw(const char* key, const std::string& value) {
    text_ += comma_;
    text_ += in_quotes(key) + ": " + value;
    comma_ = ", ";
  }
  void quoted(const char* key, std::string_view value) {
    raw(key, in_quotes(value));
  }
  void number(const char* key, int64_t value) {
    raw(key, std::to_string(value));
  }

  const std::vector<FlightGroup> groups_;
  int64_t shift_ns_;
  std::string text_;
  const char* comma_ = "";
};

}  // namespace

std::string last_flights(size_t count) {
  const auto records = flights();
  const auto groups = flight_groups();
  std::string out;
  for (size_t i = records.size() - std::min(count, records.size());
       i < records.size();
       ++i) {
    const auto& record = records[i];
    out += "\n  " + std::string(record.collective) + " (call " +
           std::to_string(record.sequence) + " of " +
           groups[record.group].name + ", " + std::to_string(record.bytes) +
           " bytes";
    if (record.cause[0] != '\0') {
      out += ", for " + std::string(record.cause.data());
    }
    out += record.ended_ns == 0  ? "), under way"
           : record.ended_ns < 0 ? "), failed"
                                 : "), done";
  }
  return out;
}

std::string flight_json() {
  const auto records = flights();
  EntryWriter writer(flight_groups());
  std::string out =
      "{\"version\": \"2.10\", \"pg_config\": " + writer.groups() +
      ", \"pg_status\": {}, \"entries\": [";
  const char* comma = "\n";
  for (const auto& record : records) {
    out += comma + writer.entry(record);
    comma = ",\n";
  }
  return out + "]}\n";
}

}  // namespace tessera::detail
