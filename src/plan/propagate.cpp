#include "plan/propagate.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>

#include "plan/redistribute_plan.h"
#include "plan/row_search.h"
#include "rules/rule_table.h"

namespace tessera::detail {
namespace {

// The layout of the tensor that the op writes; nullptr if it writes none.
const Spec* written_spec(const PropagationInput& input) {
  for (size_t i = 0; i < input.inputs.size(); ++i) {
    if (input.written[i] && input.inputs[i] != nullptr) {
      return input.inputs[i].get();
    }
  }
  return nullptr;
}

std::string microseconds(double cost) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f us", cost);
  return text;
}

// The plans that a candidate needs, one an argument that has to move.
std::string moves(
    const PropagationInput& input,
    const PricedRows& priced,
    const Candidate& candidate) {
  std::string text;
  for (size_t i = 0; i < input.inputs.size(); ++i) {
    const SpecPtr& spec = input.inputs[i];
    if (spec == nullptr) {
      continue;
    }
    const auto plan = cached_redistribution(*spec, priced.input(candidate, i));
    if (plan->steps.empty()) {
      continue;
    }
    if (!text.empty()) {
      text += "; ";
    }
    text += "argument " + std::to_string(i) + ": " + plan->str();
  }
  return text.empty() ? "nothing to move" : text;
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

}  // namespace

PropagationResult choose(const PropagationInput& input, const Rows& rows) {
  const PricedRows priced(input, rows);
  const std::optional<Candidate> candidate = cheapest_candidate(priced);
  if (!candidate) {
    const Spec* written = written_spec(input);
    TORCH_INTERNAL_ASSERT(
        written != nullptr, "the all-replicate row of an op did not hold");
    TORCH_CHECK_NOT_IMPLEMENTED(
        false,
        "Operator ",
        op_display_name(input.call.schema()),
        " cannot keep the layout ",
        to_string(written->placements),
        " of the tensor it writes; redistribute it first "
        "(tensor.redistribute(...)) or use the out-of-place op");
  }
  PropagationResult chosen;
  chosen.inputs.reserve(input.inputs.size());
  for (size_t i = 0; i < input.inputs.size(); ++i) {
    chosen.inputs.push_back(priced.input(*candidate, i));
  }
  chosen.outputs.reserve(input.output_sizes.size());
  for (size_t o = 0; o < input.output_sizes.size(); ++o) {
    chosen.outputs.push_back(priced.output(*candidate, o));
  }
  chosen.cost = priced.price(*candidate).cost;
  return chosen;
}

std::string explain_propagation(
    const PropagationInput& input, const Rows& rows) {
  const PricedRows priced(input, rows);
  const std::optional<Candidate> best = cheapest_candidate(priced);

  std::string text =
      op_display_name(input.call.schema()) + " on " + input.mesh.str() + "\n";
  for (size_t i = 0; i < input.inputs.size(); ++i) {
    const SpecPtr& spec = input.inputs[i];
    text += "  argument " + std::to_string(i) + ": " +
            (spec == nullptr ? "not given" : to_string(spec->placements)) +
            (input.written[i] ? ", written" : "") + "\n";
  }
  size_t width = 0;
  for (size_t r = 0; r < priced.row_count(); ++r) {
    width = std::max(width, priced.row(r).str().size());
  }
  const int64_t ndim = input.mesh.ndim();
  // Each mesh dimension's rows, the others held as chosen: on a 1-d mesh this
  // is the whole priced.
  const Candidate base = best.value_or(
      Candidate(ndim, static_cast<uint32_t>(priced.row_count() - 1)));
  for (int64_t m = 0; m < ndim; ++m) {
    text += "mesh dim " + std::to_string(m) + " of size " +
            std::to_string(input.mesh.size(m)) + "\n";
    for (uint32_t r = 0; r < priced.row_count(); ++r) {
      Candidate candidate = base;
      candidate[m] = r;
      Price price;
      price.refusal = priced.refusal(priced.row(r), m);
      if (best && price.refusal == nullptr) {
        price = priced.price(candidate);
      }
      text += best && r == base[m] ? "  * " : "    ";
      text += padded(priced.row(r).str(), width) + "  ";
      if (price.refusal != nullptr) {
        text += price.refusal;
      } else if (best) {
        text += padded(microseconds(price.cost), 12) +
                moves(input, priced, candidate);
        if (price.total - price.cost > 0.05) {
          text += "; then a pending reduction, " +
                  microseconds(price.total - price.cost);
        }
      }
      text += "\n";
    }
  }
  if (!best) {
    return text + "no row keeps the layout of the tensor that is written\n";
  }
  text += "chosen: ";
  for (size_t i = 0; i < input.inputs.size(); ++i) {
    text += (i > 0 ? ", " : "") + to_string(priced.input(*best, i));
  }
  text += " -> ";
  for (size_t o = 0; o < input.output_sizes.size(); ++o) {
    text += (o > 0 ? ", " : "") + to_string(priced.output(*best, o));
  }
  return text + ", " + microseconds(priced.price(*best).cost) + "\n";
}

}  // namespace tessera::detail
