// One device is the oracle: a sample called on distributed tensors must give
// what it gives on plain ones, forward and backward, whatever their layouts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "testing/layouts.h"
#include "testing/samples.h"

namespace tessera::testing {

// What one call gave: its results, what it wrote, and the gradients of its
// floating-point arguments for gradients of the results that the seed draws.
struct Evaluation {
  std::vector<at::Tensor> results;  // lists laid out flat
  std::vector<c10::IValue> numbers;
  std::vector<at::Tensor> written;
  std::vector<at::Tensor> gradients;  // undefined where there is none
};

class Oracle {
 public:
  // Runs the sample on plain tensors.
  explicit Oracle(const Sample& sample, uint64_t seed = 0);

  const Sample& sample() const { return sample_; }
  // The tensors that layouts are for; arguments that are None have none.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  bool differentiable() const { return differentiable_; }

  struct Verdict {
    bool refused = false;  // as the sample allows
    std::string failure;   // empty if all is well
  };
  // Runs the sample on the mesh, each of tensors() in its layout, and compares.
  // Communicates.
  Verdict check(
      const DeviceMesh& mesh, const std::vector<Placements>& layouts) const;

 private:
  using Arranged = std::vector<at::Tensor>;
  Evaluation evaluate(
      const Arranged& tensors, const DeviceMesh* mesh, bool backward) const;
  std::string compare(const Evaluation& actual, const DeviceMesh& mesh) const;
  bool may_refuse(const std::vector<Placements>& layouts) const;

  Sample sample_;
  c10::OperatorHandle op_;
  uint64_t seed_;
  torch::jit::Stack arguments_;
  std::vector<at::Tensor> tensors_;
  // For each of tensors(), its argument, and whether that is written.
  std::vector<size_t> owners_;
  std::vector<bool> written_;
  bool differentiable_ = false;
  // Of the sample's dtypes the one that rounds most.
  c10::ScalarType precision_ = c10::kDouble;
  Evaluation expected_;
};

// "[S(0)], [P(sum)]"
std::string layouts_text(const std::vector<Placements>& layouts);

}  // namespace tessera::testing
