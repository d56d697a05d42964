// The ranks that save or load together: those of the world, or this process
// alone where there is none.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "dispatch/agreement.h"
#include "tessera/mesh.h"

namespace tessera::detail {

class Participants {
 public:
  // Of the innermost world.
  static Participants of_world();
  // The same ranks over connections of their own: for a thread beside the
  // program's, whose collectives have an order of their own.
  Participants in_background() const;
  // This process alone.
  static Participants alone();

  int64_t size() const { return size_; }
  // The ranks that live here.
  const std::vector<int64_t>& here() const { return here_; }
  // Whether rank 0 lives here.
  bool leads() const { return here_.front() == 0; }

  // Runs `body` here; if it throws on some ranks, every rank throws the first
  // one's error. `mine`: whether this rank has something to do. Communicates.
  // Ranks that have nothing to do wait for those that have.
  void together(
      const char* cause, bool mine, c10::function_ref<void()> body) const;
  // The words of all ranks, one after the other. `counts[r]` is how many words
  // rank r has; `words` are those of the ranks that live here. Communicates.
  std::vector<int64_t> gather(
      const std::vector<int64_t>& words,
      const std::vector<int64_t>& counts) const;

 private:
  int64_t size_ = 1;
  std::vector<int64_t> here_{0};
  // Where other processes take part: a mesh of all ranks. The program's own
  // collectives go over the same connections, so that a rank which calls
  // another one is found out at once.
  std::optional<DeviceMesh> mesh_;
};

// What `body` throws, std::bad_alloc and the like included.
LocalError any_local_error_of(c10::function_ref<void()> body);

}  // namespace tessera::detail
