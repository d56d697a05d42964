// What a World is made of, and the list of those that have been entered.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/collectives.h"
#include "core/process_context.h"

namespace tessera::detail {

class ProcessCollectives;

class WorldState {
 public:
  WorldState(ProcessContext process_context, std::chrono::milliseconds timeout);
  ~WorldState();

  const ProcessContext process_context;
  std::atomic<std::chrono::milliseconds> timeout;
  std::unique_ptr<Collectives> collectives;
  // The same object where the world is one of processes, null otherwise.
  ProcessCollectives* processes = nullptr;
};

}  // namespace tessera::detail
