#include "api/text_table.h"

#include <algorithm>

namespace tessera::detail {

std::string text_table(
    const std::vector<Align>& columns,
    const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(columns.size());
  for (const auto& row : rows) {
    for (size_t c = 0; c < columns.size(); ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::string blanks(widths[c] - row[c].size(), ' ');
      line += c > 0 ? "  " : "";
      line += columns[c] == Align::Left ? row[c] + blanks : blanks + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace tessera::detail
