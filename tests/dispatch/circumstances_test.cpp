// Every sample once more, on tensors and in modes that are not the usual ones:
// permuted views, in which the last dimension is outermost in memory, and
// inference mode, on tensors that were made outside and inside of it; and in a
// scope of explicit communication, where an op is refused or sends nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <regex>

#include "testing/oracle.h"
#include "testing/worlds.h"

namespace tessera {
namespace circumstances_test {

using tessera::testing::Circumstances;
using tessera::testing::Oracle;

struct Named {
  const char* name;
  Circumstances circumstances;
  size_t layouts = 12;  // to try of a sample, simulated
};

class OpCircumstances : public ::testing::TestWithParam<Named> {};

bool is_wanted_sample(const testing::Sample& sample) {
  const char* wanted = std::getenv("TESSERA_SAMPLE");
  return wanted == nullptr || std::regex_match(sample.op, std::regex(wanted));
}

// Kernels of ATen's that take tensors for contiguous without a look, as those
// who call them see to.
bool is_unsafe(const testing::Sample& sample, Circumstances circumstances) {
  return circumstances == Circumstances::Transposed &&
         (sample.op.starts_with("aten::_stack") ||
          sample.op.starts_with("tessera::causal_attention") ||
          sample.op.starts_with("aten::_scaled_dot_product") ||
          sample.op == "aten::adaptive_max_pool3d_backward" ||
          sample.op.starts_with("aten::fractional_max_pool") ||
          sample.op == "aten::native_group_norm_backward" ||
          sample.op == "aten::native_layer_norm_backward");
}

// Factors that kernels of ATen's give of a matrix or of its transpose, as lies
// better. Those who call them know which; results made of them are compared.
bool depends_on_strides(
    const testing::Sample& sample, Circumstances circumstances) {
  return circumstances == Circumstances::Transposed &&
         (sample.op == "aten::_linalg_det" ||
          sample.op == "aten::_linalg_slogdet");
}

TEST_P(OpCircumstances, SamplesEqualOneDevice) {
  size_t calls = 0;
  size_t samples = 0;
  const bool ran = testing::with_mesh({4}, [&](const DeviceMesh& mesh) {
    for (const auto& sample : testing::all_samples()) {
      if (!is_wanted_sample(sample) ||
          is_unsafe(sample, GetParam().circumstances) ||
          depends_on_strides(sample, GetParam().circumstances)) {
        continue;
      }
      const Oracle oracle(sample);
      size_t failures = 0;
      for (const auto& layouts : testing::layouts_to_try(
               oracle.tensors(),
               mesh,
               testing::over_processes() ? 2 : GetParam().layouts,
               ++samples)) {
        ++calls;
        const auto verdict =
            oracle.check(mesh, layouts, GetParam().circumstances);
        if (!verdict.failure.empty() && ++failures <= 2) {
          ADD_FAILURE() << verdict.failure;
        }
      }
    }
  });
  EXPECT_TRUE(ran);
  std::cout << samples << " samples, " << calls << " layouts\n";
}

INSTANTIATE_TEST_SUITE_P(
    All,
    OpCircumstances,
    ::testing::Values(
        Named{"Transposed", Circumstances::Transposed},
        Named{"Inference", Circumstances::Inference},
        Named{"InferenceInside", Circumstances::InferenceInside},
        Named{"Explicit", Circumstances::Explicit, 5}),
    [](const auto& info) { return info.param.name; });

}  // namespace circumstances_test
}  // namespace tessera
