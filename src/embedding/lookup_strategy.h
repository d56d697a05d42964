// The two ways of indices that are cut where a table's rows are, as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tessera/spec.h"

namespace tessera::detail {

// In microseconds.
struct StrategyCosts {
  double gather;
  double exchange;
};

// What is looked up how, and at what price. `costs`: nullopt where the exchange
// cannot serve.
std::string strategies_text(
    std::string_view op,
    const Spec& table,
    const Spec& batch,
    const std::optional<StrategyCosts>& costs,
    bool exchanged);

}  // namespace tessera::detail
