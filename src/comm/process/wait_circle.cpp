#include "comm/process/wait_circle.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>

#include "comm/process/rendezvous.h"

namespace tessera::detail {

namespace {

// How many of those that one rank waits for are looked at: a circle of ranks
// leads through the first few, or is found by another of its ranks.
constexpr size_t kMostAwaited = 8;
constexpr size_t kMostLinks = 64;

// The wait because of which `record`'s rank does not come to a call of a group;
// null if it has come or may come.
const RankWait* obstacle(const WaitRecord& record, const RankWait& to) {
  const auto group = record.groups.find(to.group);
  if (group == record.groups.end() || group->second.count >= to.call) {
    return nullptr;
  }
  const RankWait* const wait = record.wait_of(group->second.thread);
  if (wait == nullptr) return nullptr;
  const auto callers = record.callers.find(device_of(to.group));
  if (callers == record.callers.end()) return nullptr;
  const bool all_wait = std::all_of(
      callers->second.begin(), callers->second.end(), [&](uint64_t thread) {
        return record.wait_of(thread) != nullptr;
      });
  return all_wait ? wait : nullptr;
}

class Search {
 public:
  explicit Search(RecordOf record_of) : record_of_(record_of) {}

  bool from(int64_t rank, uint64_t thread) {
    const WaitRecord* const record = record_of_(rank);
    const RankWait* const wait =
        record == nullptr ? nullptr : record->wait_of(thread);
    if (wait == nullptr) return false;
    const auto on_path =
        std::find_if(path_.begin(), path_.end(), [&](const WaitLink& link) {
          return link.rank == rank && link.wait.thread == thread;
        });
    if (on_path != path_.end()) return true;
    if (path_.size() >= kMostLinks || !seen_.insert({rank, thread}).second) {
      return false;
    }
    path_.push_back({rank, *wait, record->beat});
    const size_t count = std::min(wait->awaited.size(), kMostAwaited);
    for (size_t i = 0; i < count; ++i) {
      const int64_t next = wait->awaited[i];
      const WaitRecord* const theirs = record_of_(next);
      const RankWait* const other =
          theirs == nullptr ? nullptr : obstacle(*theirs, *wait);
      if (other == nullptr) continue;
      // The one that it is found to wait for is named first.
      path_.back().wait.awaited = {next};
      if (from(next, other->thread)) return true;
    }
    path_.pop_back();
    return false;
  }

  std::vector<WaitLink> path() { return std::move(path_); }

 private:
  RecordOf record_of_;
  std::vector<WaitLink> path_;
  std::set<std::pair<int64_t, uint64_t>> seen_;
};

}  // namespace

std::vector<WaitLink> find_circle(
    int64_t rank, uint64_t thread, RecordOf record_of) {
  Search search(record_of);
  if (!search.from(rank, thread)) return {};
  return search.path();
}

std::string describe_circle(const std::vector<WaitLink>& circle) {
  std::string text;
  for (size_t i = 1; i < circle.size(); ++i) {
    const auto& wait = circle[i].wait;
    text += c10::str(
        i == 1 ? "it waits in " : ", which waits in ",
        wait.collective,
        " (call ",
        wait.call,
        " of ",
        wait.group,
        ") for ",
        name_ranks(wait.awaited));
  }
  return text;
}

std::vector<std::pair<int64_t, uint64_t>> members_of(
    const std::vector<WaitLink>& circle) {
  std::vector<std::pair<int64_t, uint64_t>> members;
  members.reserve(circle.size());
  for (const auto& link : circle) {
    members.emplace_back(link.rank, link.wait.number);
  }
  return members;
}

bool CircleWatch::is_real(const std::vector<WaitLink>& circle) {
  auto waits = members_of(circle);
  if (waits != waits_ || waits.empty()) {
    waits_ = std::move(waits);
    looks_ = waits_.empty() ? 0 : 1;
    return false;
  }
  std::vector<uint64_t> beats;
  beats.reserve(circle.size());
  for (const auto& link : circle) beats.push_back(link.beat);
  if (++looks_ == 2) {
    beats_ = std::move(beats);
    return false;
  }
  for (size_t i = 0; i < beats.size(); ++i) {
    if (beats[i] < beats_[i] + 2) return false;
  }
  return true;
}

}  // namespace tessera::detail
