// What the comm layer reports of each collective, for CommDebugMode.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/spec.h"

namespace tessera::detail {

struct CommEvent {
  std::string_view collective;  // "all_reduce", "all_gather", ...
  std::string_view cause;       // the op being run, "aten::mm"; "" outside one
  // Of the distributed tensors given to the op; nullptr for plain ones. Empty
  // where the op is not known by its arguments.
  c10::ArrayRef<SpecPtr> arguments;
  int64_t group_size;
  // What each rank that lives here sends to other ranks, by the formulas of
  // docs/debugging.md: one rank over processes, all of a simulated world.
  c10::ArrayRef<int64_t> ranks;
  c10::ArrayRef<int64_t> bytes;
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

// The op on whose behalf collectives are issued.
struct CommCause {
  std::string_view op;
  c10::ArrayRef<SpecPtr> arguments;
};

// Names the op on whose behalf collectives are issued by this thread, and the
// layouts it was given, which must outlive the guard. Without any, those of the
// guard around it stay.
class CommCauseGuard {
 public:
  explicit CommCauseGuard(
      std::string_view op, c10::ArrayRef<SpecPtr> arguments = {});
  ~CommCauseGuard();
  CommCauseGuard(const CommCauseGuard&) = delete;
  CommCauseGuard& operator=(const CommCauseGuard&) = delete;

 private:
  CommCause previous_;
};

}  // namespace tessera::detail
