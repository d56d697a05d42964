// Checks rules by brute force, both ways, on ranks that are nothing but a loop:
// inputs are split as a row says, the op is called on the parts, and the
// results, put together as the row says, must be those of the whole. A row that
// fails is wrong. A layout of the inputs that works but has no row is
// missing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rules/rule_table.h"
#include "tessera/mesh.h"
#include "testing/samples.h"

namespace tessera::testing {

struct Finding {
  std::string sample;
  std::string row;     // "S(0),R->S(0)"; of a missing one "S(0),R->S(0)|R"
  std::string detail;  // how the result differs, on which mesh

  std::string str() const;
};

struct Report {
  size_t samples = 0;
  size_t rows = 0;          // rows tried, each on every mesh that they allow
  size_t combinations = 0;  // of input placements tried that have no row
  std::vector<Finding> wrong;
  std::vector<Finding> missing;

  // "1234 rows of 321 samples: 0 wrong; 4321 other layouts: 0 missing"
  std::string summary() const;
};

// The rule that serves a sample's op: its own, or the pointwise one; nullptr
// where it decomposes or has none.
const Rule* rule_of_sample(const Sample& sample);

// Tries the sample on each of `meshes` (1-d, simulated, of different sizes) and
// adds what it finds to the report. Row by row and layout by layout; a layout
// counts as missing only where it is right for all meshes and several values.
void validate(
    const Sample& sample,
    const Rule& rule,
    c10::ArrayRef<DeviceMesh> meshes,
    Report& report);

}  // namespace tessera::testing
