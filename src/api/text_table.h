// Columns of text, for the tables that debug functions print.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::detail {

enum class Align : uint8_t { Left, Right };

// Rows of cells with two blanks between the columns, each as wide as its widest
// cell; no blanks at the ends of lines. Every row has one cell for each of
// `columns`.
std::string text_table(
    const std::vector<Align>& columns,
    const std::vector<std::vector<std::string>>& rows);

}  // namespace tessera::detail
