// Nodes of the autograd graph at the boundary of plain and distributed tensors.
// They are written by hand: torch::autograd::Function keeps what it needs in
// maps by name, which takes longer than all of to_local.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace tessera::detail {

// Counted by std::shared_ptr up to torch 2.12, with a deleter that spares the
// stack, and by c10::intrusive_ptr since.
using NodePtr = decltype(torch::autograd::Edge::function);

template <class NodeType, class... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<
                    NodePtr,
                    std::shared_ptr<torch::autograd::Node>>) {
    return NodePtr(new NodeType(std::forward<Args>(args)...), [](auto* node) {
      deleteNode(node);
    });
  } else {
    return c10::make_intrusive<NodeType>(std::forward<Args>(args)...);
  }
}

// Whether an op on these tensors is recorded.
inline bool records(at::TensorList tensors) {
  return at::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
           return tensor.requires_grad();
         });
}

// Makes `outputs` the results of `node`, whose gradients go to `inputs`.
void record(const NodePtr& node, at::TensorList inputs, at::TensorList outputs);

// Makes `gradient` the result of a node without a derivative: what follows from
// it goes on, but differentiating it again throws c10::NotImplementedError with
// this text. `inputs` are the edges of what it was worked out of; without a
// valid one it is left alone, unless `on_another_rank` has one.
void refuse_second_derivative(
    const at::Tensor& gradient,
    torch::autograd::edge_list inputs,
    std::string text,
    bool on_another_rank = false);

}  // namespace tessera::detail
