// What the local calls of an op on gathered inputs gave: the same on every
// rank.
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <vector>

#include "dispatch/op_plan.h"

namespace tessera::detail {

class ReplicatedResults {
 public:
  ReplicatedResults(const OpInfo& op, const DeviceMesh& mesh);

  // Takes one local call's results from the stack. Throws
  // c10::NotImplementedError for a tensor that is not strided.
  void take(torch::jit::Stack& local);

  // On a rank outside the mesh, which has no value but knows the layout: the
  // results' sizes by the op's meta kernel. Throws c10::Error if that cannot
  // tell, or the op returns something that is no tensor.
  void infer(c10::ArrayRef<c10::IValue> args, const CallTensors& call);

  // What the view number `output` of an argument remembers.
  using OriginOf = std::function<ViewOrigin(
      int32_t argument,
      size_t output,
      const SpecPtr& spec,
      const Shards& shards)>;

  // The distributed results, in the order of the schema.
  torch::jit::Stack wrap(
      c10::ArrayRef<c10::IValue> args, const OriginOf& origin);

 private:
  // A return's tensors (one, or a list's), each by rank.
  struct Return {
    std::vector<Shards> tensors;
    std::vector<SpecPtr> specs;  // nullptr for undefined ones
    c10::IValue plain;
  };
  void take(Return& ret, size_t index, const at::Tensor& tensor);

  const OpInfo& op_;
  const DeviceMesh mesh_;
  const Placements replicated_;
  std::vector<Return> returns_;
};

}  // namespace tessera::detail
