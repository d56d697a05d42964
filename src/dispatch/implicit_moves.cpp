#include "dispatch/implicit_moves.h"

#include <c10/util/Exception.h>

#include "dispatch/scopes.h"
#include "plan/cost.h"
#include "tessera/language.h"

namespace tessera::detail {

namespace {

bool communicates(const Step& step) {
  switch (step.kind) {
    case Step::Kind::AllGather:
    case Step::Kind::AllToAll:
    case Step::Kind::AllReduce:
    case Step::Kind::ReduceScatter:
      return true;
    case Step::Kind::Slice:
    case Step::Kind::ToPartial:
      return false;
  }
  return false;
}

[[noreturn]] void refuse(
    std::string_view op, std::string_view does, std::string_view instead) {
  TORCH_CHECK(
      false,
      "[",
      op,
      "] would ",
      does,
      ", which a scope of explicit communication forbids. ",
      spell(instead),
      ", or leave the scope (",
      spell("tessera::ExplicitCommunication"),
      ")");
}

}  // namespace

void check_implicit_move(
    std::string_view op,
    std::string_view tensor,
    const Spec& from,
    const RedistributePlan& plan) {
  if (!is_explicit()) {
    return;
  }
  int64_t bytes = 0;
  bool sends = false;
  for (const Step& step : plan.steps) {
    if (communicates(step)) {
      sends = true;
      bytes += largest_shard_bytes(
          from.mesh,
          from.sizes,
          static_cast<int64_t>(c10::elementSize(from.shard_dtype)),
          step.before);
    }
  }
  if (sends) {
    refuse(
        op,
        c10::str(
            "redistribute ",
            tensor,
            " from ",
            to_string(from.placements),
            " to ",
            to_string(plan.steps.back().after),
            " by ",
            plan.str(),
            " (",
            bytes,
            " bytes a rank)"),
        "Call redistribute(...) on it first");
  }
}

void check_implicit_move(
    std::string_view op,
    std::string_view tensor,
    const Spec& from,
    PlacementsRef to) {
  if (is_explicit() && PlacementsRef(from.placements) != to) {
    check_implicit_move(op, tensor, from, *cached_redistribution(from, to));
  }
}

void check_implicit_move(
    const OpInfo& op,
    size_t argument,
    const Spec& from,
    const RedistributePlan& plan) {
  if (is_explicit()) {
    const auto& name = op.handle.schema().arguments()[argument].name();
    check_implicit_move(op.display_name, "argument '" + name + "'", from, plan);
  }
}

void check_implicit_exchange(
    std::string_view op, const ImplicitExchange& exchange) {
  if (is_explicit()) {
    refuse(
        op,
        c10::str(exchange.does, " (at most ", exchange.bytes, " bytes a rank)"),
        exchange.instead);
  }
}

}  // namespace tessera::detail
