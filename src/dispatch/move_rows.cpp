#include "dispatch/move_rows.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/tensor.h>

#include <memory>

#include "comm/comm_event.h"
#include "dispatch/boundary_node.h"
#include "dispatch/tangents.h"

namespace tessera::detail {

namespace {

using torch::autograd::variable_list;

enum class Direction { There, Back };

at::Tensor permuted(
    const at::Tensor& rows,
    const std::vector<int64_t>& order,
    Direction direction) {
  if (order.empty()) {
    return rows;
  }
  const auto index =
      at::tensor(at::ArrayRef<int64_t>(order), at::kLong).to(rows.device());
  return direction == Direction::There ? rows.index_select(0, index)
                                       : rows.index_select(0, index.argsort());
}

// Below autograd.
Shards run_step(
    const DeviceMesh& mesh,
    const RowStep& step,
    const Shards& shards,
    Direction direction) {
  const bool there = direction == Direction::There;
  Shards rows;
  for (size_t i = 0; i < shards.size(); ++i) {
    auto mine = shards[i].movedim(step.dim, 0);
    rows.push_back(there ? permuted(mine, step.order[i], direction) : mine);
  }
  auto moved = collectives(mesh).all_to_all_rows(
      {mesh, step.mesh_dim},
      rows,
      there ? step.send : step.receive,
      there ? step.receive : step.send);
  for (size_t i = 0; i < moved.size(); ++i) {
    auto mine = there ? moved[i] : permuted(moved[i], step.order[i], direction);
    moved[i] = mine.movedim(0, step.dim).contiguous();
  }
  return moved;
}

struct Plan {
  DeviceMesh mesh;
  RowSteps steps;
};

std::vector<at::Tensor> carry_out(
    const std::shared_ptr<const Plan>& plan,
    at::TensorList locals,
    Direction direction);

class MoveRows final : public torch::autograd::Node {
 public:
  // `direction` is that of the gradient.
  MoveRows(std::shared_ptr<const Plan> plan, Direction direction)
      : plan_(std::move(plan)), direction_(direction) {}

  // Gradients of all shards come, or none: they are those of one tensor.
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return variable_list(grads.size());
    }
    return carry_out(plan_, grads, direction_);
  }

  std::string name() const override { return "MoveRowsBackward"; }

 private:
  std::shared_ptr<const Plan> plan_;
  Direction direction_;
};

std::vector<at::Tensor> carry_out(
    const std::shared_ptr<const Plan>& plan,
    at::TensorList locals,
    Direction direction) {
  const bool there = direction == Direction::There;
  Shards shards(locals.begin(), locals.end());
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const CommCauseGuard cause("from_local");
    const size_t count = plan->steps.size();
    for (size_t i = 0; i < count; ++i) {
      const auto& step = plan->steps[there ? i : count - 1 - i];
      shards = run_step(plan->mesh, step, shards, direction);
    }
  }
  std::vector<at::Tensor> results(shards.begin(), shards.end());
  if (records(locals)) {
    const auto back = there ? Direction::Back : Direction::There;
    record(make_node<MoveRows>(plan, back), locals, results);
  }
  if (has_tangent(locals)) {
    const auto tangents = carry_out(plan, tangents_of(locals), direction);
    for (size_t i = 0; i < results.size(); ++i) {
      set_tangent(results[i], tangents[i]);
    }
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> move_rows(
    const DeviceMesh& mesh, const RowSteps& steps, at::TensorList locals) {
  const auto plan = std::make_shared<const Plan>(Plan{mesh, steps});
  return carry_out(plan, locals, Direction::There);
}

}  // namespace tessera::detail
