#include "dispatch/boundary_node.h"

#include "dispatch/grad_layout.h"

namespace tessera::detail {

namespace {

using torch::autograd::variable_list;

class NoDerivative final : public torch::autograd::Node {
 public:
  // The greatest number makes it the first to run: nothing is sent before.
  NoDerivative(torch::autograd::edge_list inputs, std::string text)
      : Node(/*sequence_nr=*/UINT64_MAX, std::move(inputs)),
        text_(std::move(text)) {}

  variable_list apply(variable_list&& /*grads*/) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, text_);
  }

  std::string name() const override { return "NoSecondDerivative"; }

 private:
  const std::string text_;
};

}  // namespace

void record(
    const NodePtr& node, at::TensorList inputs, at::TensorList outputs) {
  keep_grad_layouts(inputs);
  torch::autograd::edge_list edges;
  edges.reserve(inputs.size());
  for (const auto& input : inputs) {
    edges.push_back(torch::autograd::impl::gradient_edge(input));
  }
  node->set_next_edges(std::move(edges));
  for (const auto& output : outputs) {
    torch::autograd::set_history(output, node);
  }
}

void refuse_second_derivative(
    const at::Tensor& gradient,
    torch::autograd::edge_list inputs,
    std::string text,
    bool on_another_rank) {
  const bool recorded =
      on_another_rank ||
      std::any_of(inputs.begin(), inputs.end(), [](const auto& edge) {
        return edge.is_valid();
      });
  if (gradient.defined() && recorded && at::GradMode::is_enabled()) {
    torch::autograd::set_history(
        gradient, make_node<NoDerivative>(std::move(inputs), std::move(text)));
  }
}

}  // namespace tessera::detail
