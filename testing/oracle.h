// One device is the oracle: a sample called on distributed tensors must give
// what it gives on plain ones, forward and backward, whatever their layouts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "testing/layouts.h"
#include "testing/samples.h"

namespace tessera::testing {

// How a sample's tensors are made and where it is called.
enum class Circumstances : uint8_t {
  Usual,
  Transposed,  // tensors are permuted views: their last dimension is outermost
  Inference,   // in inference mode, on tensors made outside
  InferenceInside,  // in inference mode, on tensors made there
  Explicit,  // in a scope of explicit communication, where nothing may be sent
};

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
  // In inference mode and in a scope of explicit communication forward only.
  // Communicates.
  Verdict check(
      const DeviceMesh& mesh,
      const std::vector<Placements>& layouts,
      Circumstances circumstances = Circumstances::Usual) const;

 private:
  using Arranged = std::vector<at::Tensor>;
  Evaluation evaluate(
      const Arranged& tensors, const DeviceMesh* mesh, bool backward) const;
  Arranged arrange(
      const DeviceMesh& mesh,
      const std::vector<Placements>& layouts,
      bool transposed) const;
  std::string failure_of(
      const Arranged& tensors,
      const DeviceMesh& mesh,
      const std::vector<Placements>& layouts) const;
  // Whether one device refuses the sample on tensors that are permuted views.
  bool refused_transposed() const;
  std::string failure_in_inference_mode(
      const DeviceMesh& mesh,
      const std::vector<Placements>& layouts,
      bool inside) const;
  std::string failure_in_explicit_scope(
      const DeviceMesh& mesh,
      const std::vector<Placements>& layouts,
      bool& refused) const;
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
