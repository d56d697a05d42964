// Local calls of ops that draw random numbers by themselves.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>

#include "dispatch/op_info.h"
#include "tessera/mesh.h"

namespace tessera::detail {

// All ranks must draw the same numbers, so an op that draws does so from a seed
// that they share, not from the process's generator.
class SharedDraw {
 public:
  // Takes a seed, which the ranks of `mesh` share, if the op draws. Throws
  // c10::NotImplementedError if the arguments hold a generator.
  SharedDraw(
      const OpInfo& op,
      c10::ArrayRef<c10::IValue> args,
      const DeviceMesh& mesh);

  // Runs one local call, whose arguments are on the stack. Every call draws the
  // same numbers.
  void run(torch::jit::Stack& local);

 private:
  const OpInfo& op_;
  bool draws_ = false;
  int64_t generator_argument_ = -1;
  uint64_t seed_ = 0;
};

}  // namespace tessera::detail
