#include "embedding/lookup_strategy.h"

#include <iomanip>
#include <sstream>

namespace tessera::detail {

std::string strategies_text(
    std::string_view op,
    const Spec& table,
    const Spec& batch,
    const std::optional<StrategyCosts>& costs,
    bool exchanged) {
  std::ostringstream text;
  text << op << " on " << table.mesh.str() << "\n"
       << "  table " << to_string(table.placements) << ", indices "
       << to_string(batch.placements)
       << ": ranks that share the table have indices of their own\n";
  if (!costs.has_value()) {
    text << "  * gather    the exchange cannot serve\n";
    return text.str();
  }
  text << std::fixed << std::setprecision(1);
  text << (exchanged ? "    " : "  * ") << "gather    " << costs->gather
       << " us\n"
       << (exchanged ? "  * " : "    ") << "exchange  " << costs->exchange
       << " us\n";
  return text.str();
}

}  // namespace tessera::detail
