// The lookups that are measured, each with the variants that do it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "redistribute/raw_group.h"
#include "tessera/mesh.h"

namespace tessera::bench {

struct Variant {
  std::string name;
  // What is timed. Returns this rank's result, dense or sparse, or an undefined
  // tensor where the variant moves the same bytes without making the result.
  std::function<at::Tensor()> run;
};

struct Lookup {
  std::string name;  // "uniform, replicated: to full"
  std::vector<Variant> variants;
};

struct TableSize {
  int64_t rows;
  int64_t columns;
  int64_t indices;
};

// Requires: the group's size divides rows and indices, and the mesh has one
// dimension over the group's ranks. Call it once; the variants refer to its
// table.
std::vector<Lookup> lookups(
    const DeviceMesh& mesh, RawGroup& group, const TableSize& size);

// `count` indices of a table of `rows` rows, the same on every rank: uniform,
// or by Zipf's law with its frequent rows scattered over the table.
at::Tensor uniform_indices(int64_t rows, int64_t count);
at::Tensor zipf_indices(int64_t rows, int64_t count);

}  // namespace tessera::bench
