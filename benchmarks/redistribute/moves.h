// The redistributions that are measured, each with the methods to do it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "redistribute/raw_group.h"
#include "tessera/mesh.h"

namespace tessera::bench {

// One method to make a redistribution happen.
struct Method {
  std::string name;
  // Run before each measurement, untimed; may be empty.
  std::function<void()> prepare;
  // What is timed. Returns this rank's result, or an undefined tensor where
  // the method moves the same bytes without making the result.
  std::function<at::Tensor()> run;
};

struct Move {
  std::string name;  // S(0)->R
  Method ours;
  std::vector<Method> raw;
};

// For a matrix of `n` x `n` floats. Requires: the group's size divides n, and
// the mesh has one dimension over the group's ranks. Raw methods write into
// buffers that are allocated here, once; ours makes a new tensor each time.
std::vector<Move> moves(const DeviceMesh& mesh, RawGroup& group, int64_t n);

}  // namespace tessera::bench
