#include "comm/process/wait_record.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace tessera::detail {

const RankWait* WaitRecord::wait_of(uint64_t thread) const {
  const auto found =
      std::find_if(waits.begin(), waits.end(), [&](const RankWait& wait) {
        return wait.thread == thread;
      });
  return found == waits.end() ? nullptr : &*found;
}

// A line for each item. Texts are quoted, lists begin with their length.
std::string WaitRecord::str() const {
  std::ostringstream out;
  out << "beat " << beat << "\n";
  for (const auto& wait : waits) {
    out << "wait " << wait.thread << " " << wait.number << " "
        << std::quoted(wait.group) << " " << wait.call << " "
        << std::quoted(wait.collective) << " " << wait.awaited.size();
    for (const int64_t rank : wait.awaited) out << " " << rank;
    out << "\n";
  }
  for (const auto& [name, calls] : groups) {
    out << "group " << std::quoted(name) << " " << calls.count << " "
        << calls.thread << "\n";
  }
  for (const auto& [device, threads] : callers) {
    out << "callers " << std::quoted(device) << " " << threads.size();
    for (const uint64_t thread : threads) out << " " << thread;
    out << "\n";
  }
  for (const auto& [rank, number] : stuck) {
    out << "stuck " << rank << " " << number << "\n";
  }
  for (const auto& [device, error] : errors) {
    out << "error " << std::quoted(device) << " " << std::quoted(error) << "\n";
  }
  out << "end\n";
  return out.str();
}

std::optional<WaitRecord> WaitRecord::parse(const std::string& text) {
  // What the longest list may have: a record of another program may say
  // anything.
  constexpr size_t kMost = 1 << 20;
  WaitRecord record;
  std::istringstream in(text);
  std::string kind;
  while (in >> kind && kind != "end") {
    size_t count = 0;
    if (kind == "beat") {
      in >> record.beat;
    } else if (kind == "wait") {
      auto& wait = record.waits.emplace_back();
      in >> wait.thread >> wait.number >> std::quoted(wait.group) >>
          wait.call >> std::quoted(wait.collective) >> count;
      if (!in || count > kMost) return std::nullopt;
      wait.awaited.resize(count);
      for (auto& rank : wait.awaited) in >> rank;
    } else if (kind == "group") {
      std::string name;
      GroupCalls calls;
      in >> std::quoted(name) >> calls.count >> calls.thread;
      record.groups[name] = calls;
    } else if (kind == "callers") {
      std::string device;
      in >> std::quoted(device) >> count;
      if (!in || count > kMost) return std::nullopt;
      auto& threads = record.callers[device];
      threads.resize(count);
      for (auto& thread : threads) in >> thread;
    } else if (kind == "stuck") {
      auto& [rank, number] = record.stuck.emplace_back();
      in >> rank >> number;
    } else if (kind == "error") {
      std::string device;
      in >> std::quoted(device);
      in >> std::quoted(record.errors[device]);
    } else {
      return std::nullopt;
    }
  }
  if (!in || kind != "end") return std::nullopt;
  return record;
}

std::string device_of(const std::string& group) {
  return group.substr(0, group.find(' '));
}

}  // namespace tessera::detail
