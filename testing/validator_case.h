// One call of a sample as the rule validator needs it: whole, and in parts.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/rule.h"
#include "testing/samples.h"

namespace tessera::testing {

// One placement for each tensor argument, or for each result.
using Placed = std::vector<Placement>;

// A call with the values of one seed, and its results on one device. Refers to
// its own parts: neither copied nor moved.
class Case {
 public:
  // `rule` must outlive the case.
  Case(const Sample& sample, const Rule& rule, uint64_t seed);
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  const OpCall& call() const { return call_; }
  // In OpCall's order; undefined where an optional one is not given.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // One a return.
  const torch::jit::Stack& expected() const { return expected_; }
  // Of the results, one a return (a list's: its first tensor's).
  const std::vector<Sizes>& output_sizes() const { return output_sizes_; }

  // The results of all ranks of a 1-d mesh, by rank, when the inputs are placed
  // as `in` says and the rule makes local arguments for results placed as `out`
  // says. Throws what the op throws.
  std::vector<torch::jit::Stack> run(
      const DeviceMesh& mesh, const Placed& in, const Placed& out) const;

 private:
  bool is_optional_tensor(size_t argument) const;
  std::vector<at::Tensor> flat_tensors() const;
  std::vector<TensorArg> tensor_args() const;
  torch::jit::Stack with_tensors(const std::vector<at::Tensor>& tensors) const;
  void put_local_arguments(
      torch::jit::Stack& stack,
      const DeviceMesh& mesh,
      int64_t rank,
      const Placed& in,
      const Placed& out) const;

  const Rule& rule_;
  c10::OperatorHandle op_;
  uint64_t seed_;
  torch::jit::Stack arguments_;
  std::vector<at::Tensor> tensors_;
  OpCall call_;
  torch::jit::Stack expected_;
  std::vector<Sizes> output_sizes_;
};

}  // namespace tessera::testing
