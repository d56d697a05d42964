#include <algorithm>
#include <cmath>
#include <cstdio>

#include "api/block_map.h"
#include "tessera/debug.h"
#include "tessera/dtensor.h"

namespace tessera {

namespace {

using detail::Block;
using detail::BlockMap;

constexpr double kPanelWidth = 480;
constexpr double kMaxPanelHeight = 480;
constexpr double kMinPanelHeight = 48;
constexpr double kMargin = 12;
constexpr double kLine = 18;        // of text
constexpr double kCharacter = 7.5;  // of text, at most

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

// Neighbouring ranks get hues far apart.
std::string colour(int64_t rank) {
  constexpr double kGoldenAngle = 137.508;
  const double hue = std::fmod(static_cast<double>(rank) * kGoldenAngle, 360);
  return "hsl(" + number(hue) + ",60%,78%)";
}

std::string text_at(
    double x, double y, const char* anchor, std::string_view text) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) +
         "\" text-anchor=\"" + anchor + "\">" + escaped(text) + "</text>\n";
}

// The extent and the start of a block in the drawn dimension `from_last` (0 is
// the last one); a dimension that the tensor lacks counts as one element.
Range drawn_range(const Block& block, size_t from_last) {
  const size_t dims = block.ranges.size();
  return from_last < dims ? block.ranges[dims - 1 - from_last] : Range{0, 1};
}

double drawn_size(const Spec& spec, size_t from_last) {
  const size_t dims = spec.sizes.size();
  return from_last < dims
             ? static_cast<double>(spec.sizes[dims - 1 - from_last])
             : 1.0;
}

class Drawing {
 public:
  explicit Drawing(const Spec& spec)
      : rows_(drawn_size(spec, 1)), columns_(drawn_size(spec, 0)) {
    panel_height_ = std::clamp(
        kPanelWidth * rows_ / std::max(columns_, 1.0),
        kMinPanelHeight,
        kMaxPanelHeight);
    line(spec.str());
  }

  void line(std::string_view text) {
    body_ += text_at(kMargin, y_ + kLine * 0.7, "start", text);
    y_ += kLine;
    width_ = std::max(width_, kCharacter * static_cast<double>(text.size()));
  }

  // The blocks of one panel, to scale.
  void panel(c10::ArrayRef<Block> blocks) {
    for (const auto& block : blocks) {
      const auto row = drawn_range(block, 1);
      const auto column = drawn_range(block, 0);
      const double x = kMargin + kPanelWidth * column.begin / columns_;
      const double y = y_ + panel_height_ * row.begin / rows_;
      const double width = kPanelWidth * column.size / columns_;
      const double height = panel_height_ * row.size / rows_;
      std::string ranges;
      for (const auto& range : block.ranges) {
        ranges += (ranges.empty() ? "" : ", ") + detail::to_string(range);
      }
      body_ += "<g><title>" + escaped(block.label) + ": [" + ranges +
               "]</title><rect x=\"" + number(x) + "\" y=\"" + number(y) +
               "\" width=\"" + number(width) + "\" height=\"" + number(height) +
               "\" fill=\"" + colour(block.ranks.front()) +
               "\" stroke=\"#333\"/>\n";
      body_ +=
          text_at(x + width / 2, y + height / 2 + 4, "middle", block.label);
      body_ += "</g>\n";
    }
    y_ += panel_height_ + kMargin;
  }

  std::string str() const {
    const std::string width = number(width_ + 2 * kMargin);
    const std::string height = number(y_ + kMargin);
    return R"(<svg xmlns="http://www.w3.org/2000/svg" width=")" + width +
           R"(" height=")" + height + R"(" viewBox="0 0 )" + width + " " +
           height +
           R"(" font-family="monospace" font-size="12">)"
           "\n" +
           R"(<rect width="100%" height="100%" fill="white"/>)"
           "\n" +
           body_ + "</svg>\n";
  }

 private:
  double rows_;
  double columns_;
  double panel_height_ = 0;
  double y_ = kMargin;
  double width_ = kPanelWidth;
  std::string body_;
};

}  // namespace

std::string visualize_sharding_svg(const Spec& spec) {
  const auto map = detail::block_map(spec);
  Drawing drawing(spec);
  // Blocks are row-major, so those of a panel follow one another.
  size_t per_panel = 1;
  const size_t dims = map.ranges.size();
  const size_t leading = dims > 2 ? dims - 2 : 0;
  for (size_t d = leading; d < dims; ++d) {
    per_panel *= map.ranges[d].size();
  }
  for (size_t first = 0; first < map.blocks.size(); first += per_panel) {
    if (leading > 0) {
      std::string caption = "[";
      for (size_t d = 0; d < leading; ++d) {
        caption += detail::to_string(map.blocks[first].ranges[d]) + ", ";
      }
      drawing.line(caption + "...]");
    }
    drawing.panel(c10::ArrayRef<Block>(&map.blocks[first], per_panel));
  }
  if (!map.empty_ranks.empty()) {
    drawing.line("nothing on ranks " + detail::rank_list(map.empty_ranks));
  }
  return drawing.str();
}

std::string visualize_sharding_svg(const at::Tensor& tensor) {
  return visualize_sharding_svg(
      detail::spec_of(tensor, "visualize_sharding_svg"));
}

}  // namespace tessera
