// Ranks that wait for each other in different groups: found in what each of
// them tells of its waits. Pure: no store, no thread, no clock.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/process/wait_record.h"

namespace tessera::detail {

// What a rank has told last; null: nothing.
using RecordOf = c10::function_ref<const WaitRecord*(int64_t rank)>;

struct WaitLink {
  int64_t rank;
  RankWait wait;
  uint64_t beat;  // of the record that says so
};

// Waits of which each waits for the next, and the last for one before it: none
// of them can end. The first is that of `thread` of `rank`. Empty: none is
// found.
//
// A rank is known not to come to a call if the thread that made its last call
// of the group waits in another one, and so does every other thread of it that
// makes calls on this device type: a thread that computes may come. Of a group
// in which it has made no call yet nothing is known: a new thread may.
std::vector<WaitLink> find_circle(
    int64_t rank, uint64_t thread, RecordOf record_of);

// "it waits in all_reduce (call 3 of cpu [2, 3]) for rank 3, which waits ...":
// from the second link on.
std::string describe_circle(const std::vector<WaitLink>& circle);

// Watches one wait, look after look. Records are read one after the other, and
// may be old: a circle is real if all of its waits were under way at one
// moment.
class CircleWatch {
 public:
  // Whether the circle that was found in this look (or an empty one) is real:
  // it was seen in two looks, and since the second every rank has told twice
  // that it still waits. What it told last was then composed after the first
  // look had ended, at which all of them had told that they wait.
  bool is_real(const std::vector<WaitLink>& circle);

 private:
  std::vector<std::pair<int64_t, uint64_t>> waits_;
  std::vector<uint64_t> beats_;
  int looks_ = 0;
};

// The ranks of a circle and the numbers of their waits.
std::vector<std::pair<int64_t, uint64_t>> members_of(
    const std::vector<WaitLink>& circle);

}  // namespace tessera::detail
