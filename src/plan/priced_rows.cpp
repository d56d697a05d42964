#include "plan/priced_rows.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include "core/terms.h"
#include "plan/cost.h"
#include "plan/redistribute_plan.h"
#include "rules/rule_table.h"

namespace tessera::detail {
namespace {

// Renaming a placement is free, but of two free rows the one that needs no
// other names is wanted. Small beside any step.
constexpr double kRenaming = 1e-6;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool in_range(const Placement& placement, size_t ndim) {
  return !placement.is_shard() ||
         (placement.dim() >= 0 && placement.dim() < static_cast<int64_t>(ndim));
}

// Whether a row for `wanted` may write a tensor whose placement is `found`: a
// MaskPartial is a pending sum, and stays one whatever is written.
bool writes_in_place(const Placement& found, const Placement& wanted) {
  return found == wanted || (found.kind() == Placement::Kind::MaskPartial &&
                             wanted == Partial(ReduceOp::Sum));
}

bool suffices(Evenness found, Needs needed) {
  switch (needed) {
    case Needs::Nothing:
      return true;
    case Needs::NonEmpty:
      return found != Evenness::Any;
    case Needs::Even:
      return found == Evenness::Even;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown need");
}

}  // namespace

PricedRows::PricedRows(const PropagationInput& input, const Rows& rows)
    : input_(input),
      rows_(rows),
      replicate_({}, {}),
      shape_(input.mesh.shape()) {
  const size_t inputs = input.inputs.size();
  const size_t outputs = input.output_sizes.size();
  replicate_.inputs.resize(inputs);
  replicate_.outputs.resize(outputs);
  for (const Row& row : rows) {
    TORCH_CHECK_VALUE(
        row.inputs.size() == inputs && row.outputs.size() == outputs,
        "[register_rule] the row ",
        row.str(),
        " of ",
        op_display_name(input.call.schema()),
        " has placements for ",
        row.inputs.size(),
        " tensor arguments and ",
        row.outputs.size(),
        " results, but the call has ",
        inputs,
        " and ",
        outputs);
  }
  for (const SpecPtr& spec : input.inputs) {
    if (spec != nullptr) {
      element_size_ =
          static_cast<int64_t>(c10::elementSize(accumulate_dtype(spec->dtype)));
      break;
    }
  }
}

const char* PricedRows::refusal(const Row& row, size_t mesh_dim) const {
  if (!fits(row)) {
    return "shards a dimension that is not there";
  }
  if (!keeps_written(row, mesh_dim)) {
    return "moves the tensor that is written";
  }
  return nullptr;
}

double PricedRows::price_alone(const Row& row, size_t mesh_dim) const {
  double cost = 0;
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    const SpecPtr& spec = input_.inputs[i];
    if (spec == nullptr || spec->placements[mesh_dim] == row.inputs[i]) {
      continue;
    }
    Placements wanted = spec->placements;
    wanted[mesh_dim] = row.inputs[i];
    if (!can_redistribute(input_.mesh, spec->placements, wanted)) {
      return kInfinity;
    }
    cost += redistribution_cost(*spec, wanted);
  }
  return cost;
}

// Never above the cost of the candidate, and found without planning: where an
// input changes on a mesh dimension, at least one step starts there.
double PricedRows::least_cost(const Candidate& candidate) const {
  double cost = 0;
  for (size_t i = 0; i < input_.inputs.size(); ++i) {
    const SpecPtr& spec = input_.inputs[i];
    if (spec == nullptr || input_.written[i]) {
      continue;
    }
    for (size_t m = 0; m < ndim(); ++m) {
      const Placement& from = spec->placements[m];
      const Placement& to = row(candidate[m]).inputs[i];
      // One pending sum may be another under another name.
      if (from != to && !(from.is_partial() && to.is_partial())) {
        const auto kind =
            from.is_replicate() ? Step::Kind::Slice : Step::Kind::AllToAll;
        cost += step_cost(kind, /*local_bytes=*/0, shape_[m]);
      }
    }
  }
  return cost;
}

Price PricedRows::price(const Candidate& candidate, double bound) const {
  Price price;
  // Half of the least difference between two prices is left to rounding.
  if (least_cost(candidate) - kRenaming / 2 >= bound) {
    price.total = kInfinity;
    return price;
  }
  if (!shards_suffice(candidate)) {
    price.refusal = "needs shards that are more even";
    return price;
  }
  if (ndim() > 1) {
    for (size_t o = 0; o < input_.output_sizes.size(); ++o) {
      if (!reductions_commute(output(candidate, o))) {
        price.refusal = "mixes reductions that do not commute";
        return price;
      }
    }
  }
  for (size_t i = 0; i < input_.inputs.size(); ++i) {
    const SpecPtr& spec = input_.inputs[i];
    if (spec == nullptr) {
      continue;
    }
    const Placements wanted = input(candidate, i);
    if (wanted == spec->placements) {
      continue;
    }
    if (!can_redistribute(input_.mesh, spec->placements, wanted)) {
      price.refusal = "wants a layout that cannot be made";
      return price;
    }
    const double cost = redistribution_cost(*spec, wanted);
    price.cost += cost;
    price.total += cost + kRenaming * (cost == 0 ? 1 : 0);
    for (size_t m = 0; m < ndim(); ++m) {
      if (shape_[m] == 1 && wanted[m] != spec->placements[m]) {
        price.total += kRenaming;
      }
    }
    if (price.total >= bound) {
      price.total = kInfinity;
      return price;
    }
  }
  if (price.cost > 0 ? !only_passes_on(candidate) : any_grows(candidate)) {
    price.total += pending_price(candidate);
  }
  return price;
}

Placements PricedRows::input(const Candidate& candidate, size_t index) const {
  const SpecPtr& spec = input_.inputs[index];
  if (spec != nullptr && input_.written[index]) {
    return spec->placements;
  }
  Placements placements;
  for (const uint32_t r : candidate) {
    placements.push_back(row(r).inputs[index]);
  }
  return placements;
}

Placements PricedRows::output(const Candidate& candidate, size_t index) const {
  const int64_t written = input_.written_by_output[index];
  if (written >= 0 && input_.inputs[written] != nullptr) {
    return input_.inputs[written]->placements;
  }
  Placements placements;
  for (const uint32_t r : candidate) {
    placements.push_back(row(r).outputs[index]);
  }
  return placements;
}

// Whether all dimensions that the row shards are there.
bool PricedRows::fits(const Row& row) const {
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    const SpecPtr& spec = input_.inputs[i];
    if (spec != nullptr && !in_range(row.inputs[i], spec->sizes.size())) {
      return false;
    }
  }
  for (size_t o = 0; o < row.outputs.size(); ++o) {
    if (input_.has_output(o) &&
        !in_range(row.outputs[o], input_.output_sizes[o].size())) {
      return false;
    }
  }
  return true;
}

bool PricedRows::exact(const Row& row, size_t mesh_dim) const {
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    const SpecPtr& spec = input_.inputs[i];
    if (spec != nullptr && spec->placements[mesh_dim] != row.inputs[i]) {
      return false;
    }
  }
  return true;
}

PricedRows::PendingElements PricedRows::pending_elements(
    const Row& row, size_t mesh_dim) const {
  PendingElements elements;
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    const SpecPtr& spec = input_.inputs[i];
    if (spec != nullptr && row.inputs[i].is_partial() &&
        spec->placements[mesh_dim].is_partial()) {
      elements.takes_any = true;
      elements.taken += spec->numel();
    }
  }
  // Elements stand for bytes: the results' dtypes may not be known yet.
  for (size_t o = 0; o < row.outputs.size(); ++o) {
    if (input_.written_by_output[o] < 0 && input_.has_output(o) &&
        row.outputs[o].is_partial()) {
      elements.leaves_any = true;
      elements.left += c10::multiply_integers(input_.output_sizes[o]);
    }
  }
  return elements;
}

bool PricedRows::grows(const Row& row, size_t mesh_dim) const {
  if (shape_[mesh_dim] == 1) {
    return false;
  }
  const PendingElements elements = pending_elements(row, mesh_dim);
  return elements.takes_any && elements.left > elements.taken;
}

bool PricedRows::any_grows(const Candidate& candidate) const {
  for (size_t m = 0; m < ndim(); ++m) {
    if (grows(row(candidate[m]), m)) {
      return true;
    }
  }
  return false;
}

// Whether the candidate sends nothing, and all that it leaves pending came to
// it pending and is not larger: of a sum and a replicated tensor, one rank adds
// the tensor to its term. Not in half kinds: that rank would round, or
// overflow.
bool PricedRows::only_passes_on(const Candidate& candidate) const {
  for (size_t m = 0; m < ndim(); ++m) {
    const PendingElements elements = pending_elements(row(candidate[m]), m);
    if (shape_[m] > 1 && elements.leaves_any &&
        (!elements.takes_any || elements.left > elements.taken)) {
      return false;
    }
  }
  for (const SpecPtr& spec : input_.inputs) {
    if (spec != nullptr && c10::isReducedFloatingType(spec->dtype)) {
      return false;
    }
  }
  return !sends(candidate);
}

bool PricedRows::sends(const Candidate& candidate) const {
  for (size_t i = 0; i < input_.inputs.size(); ++i) {
    const SpecPtr& spec = input_.inputs[i];
    if (spec == nullptr) {
      continue;
    }
    for (const Step& step :
         cached_redistribution(*spec, input(candidate, i))->steps) {
      if (step.kind != Step::Kind::Slice &&
          step.kind != Step::Kind::ToPartial) {
        return true;
      }
    }
  }
  return false;
}

// Whether the row leaves the tensors that are written, and the results that are
// those tensors, where they lie. On a mesh dimension of size 1 any row does.
bool PricedRows::keeps_written(const Row& row, size_t mesh_dim) const {
  if (shape_[mesh_dim] == 1) {
    return true;
  }
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    const SpecPtr& spec = input_.inputs[i];
    if (input_.written[i] && spec != nullptr &&
        !writes_in_place(spec->placements[mesh_dim], row.inputs[i])) {
      return false;
    }
  }
  for (size_t o = 0; o < row.outputs.size(); ++o) {
    const int64_t written = input_.written_by_output[o];
    if (written >= 0 && input_.inputs[written] != nullptr &&
        !writes_in_place(
            input_.inputs[written]->placements[mesh_dim], row.outputs[o])) {
      return false;
    }
  }
  return true;
}

// Whether the dimensions that a row shards are split as evenly as it needs, by
// all mesh dimensions together.
bool PricedRows::shards_suffice(const Candidate& candidate) const {
  for (size_t m = 0; m < ndim(); ++m) {
    const Row& own = row(candidate[m]);
    if (own.needs == Needs::Nothing || shape_[m] == 1) {
      continue;
    }
    const auto enough =
        [&](const Placement& shard, SizesRef sizes, const Placements& all) {
          return !shard.is_shard() || suffices(
                                          evenness(
                                              own.units_of(sizes[shard.dim()]),
                                              shard.dim(),
                                              input_.mesh,
                                              all),
                                          own.needs);
        };
    for (size_t i = 0; i < own.inputs.size(); ++i) {
      const SpecPtr& spec = input_.inputs[i];
      if (spec != nullptr &&
          !enough(own.inputs[i], spec->sizes, input(candidate, i))) {
        return false;
      }
    }
    for (size_t o = 0; o < own.outputs.size(); ++o) {
      if (input_.has_output(o) &&
          !enough(
              own.outputs[o], input_.output_sizes[o], output(candidate, o))) {
        return false;
      }
    }
  }
  return true;
}

double PricedRows::pending_price(const Candidate& candidate) const {
  double cost = 0;
  for (size_t o = 0; o < input_.output_sizes.size(); ++o) {
    if (input_.written_by_output[o] >= 0 || !input_.has_output(o)) {
      continue;  // pending as it was, or not there
    }
    const Placements placements = output(candidate, o);
    for (size_t m = 0; m < ndim(); ++m) {
      if (placements[m].is_partial()) {
        cost += step_cost(
            Step::Kind::ReduceScatter,
            largest_shard_bytes(
                input_.mesh, input_.output_sizes[o], element_size_, placements),
            shape_[m]);
      }
    }
  }
  return cost;
}

}  // namespace tessera::detail
