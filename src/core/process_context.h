// Which ranks live in this process: the one fact about the world that values
// need. Set by comm/ when a World is entered; read when a mesh is made.
#pragma once

#include <cstdint>
#include <optional>

namespace tessera::detail {

struct ProcessContext {
  uint64_t world_id;
  int64_t world_size;
  // This process's rank; -1 where all ranks live here.
  int64_t rank;

  bool simulated() const { return rank < 0; }
};

std::optional<ProcessContext> current_process_context();
void set_current_process_context(std::optional<ProcessContext> process_context);

}  // namespace tessera::detail
