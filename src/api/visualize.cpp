#include <algorithm>

#include "api/block_map.h"
#include "api/text_table.h"
#include "tessera/debug.h"
#include "tessera/dtensor.h"

namespace tessera {

namespace {

using detail::Block;
using detail::BlockMap;

// Wider grids than this are printed as tables.
constexpr size_t kPageWidth = 100;

std::string centred(const std::string& text, size_t width) {
  const size_t left = (width - text.size()) / 2;
  return std::string(left, ' ') + text +
         std::string(width - text.size() - left, ' ');
}

// A grid of blocks with the index ranges of dimension 0 down the side and those
// of dimension 1 along the top; of a 1-d tensor, a single line of blocks.
class Grid {
 public:
  // Requires: one or two dimensions, and a block.
  explicit Grid(const BlockMap& map)
      : blocks_(map.blocks), columns_(map.ranges.back()) {
    if (map.ranges.size() == 2) {
      for (const auto& range : map.ranges[0]) {
        sides_.push_back(detail::to_string(range));
      }
    } else {
      sides_.emplace_back();
    }
    for (const auto& side : sides_) {
      side_width_ = std::max(side_width_, side.size());
    }
    for (size_t c = 0; c < columns_.size(); ++c) {
      size_t width = detail::to_string(columns_[c]).size();
      for (size_t r = 0; r < sides_.size(); ++r) {
        width = std::max(width, block(r, c).label.size());
      }
      widths_.push_back(width + 2);
    }
  }

  size_t width() const {
    size_t width = side_width_ + 2;
    for (const size_t column : widths_) width += column + 1;
    return width;
  }

  std::string str() const {
    const std::string indent(side_width_ + 1, ' ');
    std::string text = indent;
    for (size_t c = 0; c < columns_.size(); ++c) {
      text += " " + centred(detail::to_string(columns_[c]), widths_[c]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    std::string line = indent + "+";
    for (const size_t width : widths_) line += std::string(width, '-') + "+";
    text += "\n" + line + "\n";
    for (size_t r = 0; r < sides_.size(); ++r) {
      text += std::string(side_width_ - sides_[r].size(), ' ') + sides_[r];
      text += " |";
      for (size_t c = 0; c < columns_.size(); ++c) {
        text += centred(block(r, c).label, widths_[c]) + "|";
      }
      text += "\n" + line + "\n";
    }
    return text;
  }

 private:
  const Block& block(size_t row, size_t column) const {
    return blocks_[row * columns_.size() + column];
  }

  const std::vector<Block>& blocks_;
  const std::vector<Range>& columns_;
  std::vector<std::string> sides_;
  size_t side_width_ = 0;
  std::vector<size_t> widths_;
};

// One line a block: its ranks and its range in each dimension.
std::string block_table(const BlockMap& map) {
  std::vector<std::string> head{"ranks"};
  for (size_t d = 0; d < map.ranges.size(); ++d) {
    head.push_back("dim " + std::to_string(d));
  }
  if (map.ranges.empty()) head.emplace_back("holds");
  std::vector<std::vector<std::string>> rows{head};
  for (const auto& block : map.blocks) {
    std::vector<std::string> row{block.label};
    for (const auto& range : block.ranges) {
      row.push_back(detail::to_string(range));
    }
    if (map.ranges.empty()) row.emplace_back("the scalar");
    rows.push_back(std::move(row));
  }
  return detail::text_table(
      std::vector<detail::Align>(head.size(), detail::Align::Left), rows);
}

}  // namespace

std::string visualize_sharding(const Spec& spec) {
  const auto map = detail::block_map(spec);
  std::string text = spec.str() + "\n";
  const bool has_grid =
      !map.blocks.empty() && (spec.dim() == 1 || spec.dim() == 2);
  if (has_grid && Grid(map).width() <= kPageWidth) {
    text += Grid(map).str();
  } else if (!map.blocks.empty()) {
    text += block_table(map);
  }
  if (!map.empty_ranks.empty()) {
    text += "nothing on ";
    text += map.empty_ranks.size() == 1 ? "rank " : "ranks ";
    text += detail::rank_list(map.empty_ranks) + "\n";
  }
  return text;
}

std::string visualize_sharding(const at::Tensor& tensor) {
  return visualize_sharding(detail::spec_of(tensor, "visualize_sharding"));
}

}  // namespace tessera
