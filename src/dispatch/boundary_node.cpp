#include "dispatch/boundary_node.h"

#include "dispatch/grad_layout.h"

namespace tessera::detail {

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

}  // namespace tessera::detail
