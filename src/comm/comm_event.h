// What the comm layer reports of each collective, for CommDebugMode.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::detail {

struct CommEvent {
  std::string_view collective;  // "all_reduce", "all_gather", ...
  std::string_view cause;       // the op being run, "aten::mm"; "" outside one
  int64_t group_size;
  // What this process's rank sends to other ranks (in a simulated world: what
  // rank 0 sends), by the formulas of docs/debugging.md.
  int64_t bytes;
};

class CommObserver {
 public:
  virtual ~CommObserver() = default;
  virtual void on_collective(const CommEvent& event) = 0;
};

// Observers are told of every collective that this process issues, whatever
// thread issues it. Safe to call from several threads.
void add_comm_observer(CommObserver* observer);
void remove_comm_observer(CommObserver* observer);

// Names the op on whose behalf collectives are issued by this thread.
class CommCauseGuard {
 public:
  explicit CommCauseGuard(std::string_view cause);
  ~CommCauseGuard();
  CommCauseGuard(const CommCauseGuard&) = delete;
  CommCauseGuard& operator=(const CommCauseGuard&) = delete;

 private:
  std::string_view previous_;
};

}  // namespace tessera::detail
