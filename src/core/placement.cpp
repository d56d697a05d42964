#include "tessera/placement.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <ostream>
#include <sstream>
#include <utility>

#include "core/hash.h"

namespace tessera {
namespace {

constexpr std::array<std::pair<ReduceOp, std::string_view>, 5> kReduceOps{{
    {ReduceOp::Sum, "sum"},
    {ReduceOp::Avg, "avg"},
    {ReduceOp::Product, "product"},
    {ReduceOp::Min, "min"},
    {ReduceOp::Max, "max"},
}};

int32_t checked_dim(int64_t dim, const char* caller) {
  TORCH_CHECK_VALUE(
      dim >= std::numeric_limits<int32_t>::min() &&
          dim <= std::numeric_limits<int32_t>::max(),
      "[",
      caller,
      "] expected a tensor dimension, but got ",
      dim);
  return static_cast<int32_t>(dim);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// What stands between "`head`(" and ")"; nothing if the text is not of that
// form.
std::optional<std::string_view> argument_of(
    std::string_view text, std::string_view head) {
  if (!text.starts_with(head) || text.size() < head.size() + 2 ||
      text[head.size()] != '(' || text.back() != ')') {
    return std::nullopt;
  }
  return trimmed(text.substr(head.size() + 1, text.size() - head.size() - 2));
}

Placement parse_placement(std::string_view text) {
  if (text == "R") {
    return Replicate();
  }
  if (const auto argument = argument_of(text, "S")) {
    int64_t dim = 0;
    const char* const end = argument->data() + argument->size();
    const auto [stop, error] = std::from_chars(argument->data(), end, dim);
    if (error == std::errc() && stop == end) {
      return Shard(dim);
    }
  }
  if (const auto argument = argument_of(text, "P")) {
    return Partial(parse_reduce_op(*argument));
  }
  TORCH_CHECK_VALUE(
      false,
      "[parse_placements] expected R, S(dim) or P(op), with op one of sum, "
      "avg, product, min, max, but got \"",
      text,
      "\"");
}

}  // namespace

std::string_view to_string(ReduceOp op) {
  for (const auto& [known, name] : kReduceOps) {
    if (known == op) {
      return name;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "no name for reduce op ", static_cast<int>(op));
}

ReduceOp parse_reduce_op(std::string_view text) {
  for (const auto& [op, name] : kReduceOps) {
    if (name == text) {
      return op;
    }
  }
  TORCH_CHECK_VALUE(
      false,
      "[parse_reduce_op] expected one of sum, avg, product, min, max, but got "
      "\"",
      text,
      "\"");
}

c10::ArrayRef<int64_t> Placement::offset_shape() const {
  TORCH_CHECK_VALUE(
      kind_ == Kind::MaskPartial,
      "[offset_shape] only MaskPartial has an offset shape, but this is ",
      str());
  return *offset_shape_;
}

bool operator==(const Placement& a, const Placement& b) {
  // The factories leave what a kind does not use at its default.
  if (a.kind_ != b.kind_ || a.op_ != b.op_ || a.dim_ != b.dim_) {
    return false;
  }
  return a.offset_shape_ == b.offset_shape_ ||
         (a.offset_shape_ && b.offset_shape_ &&
          *a.offset_shape_ == *b.offset_shape_);
}

size_t hash_value(const Placement& placement) {
  uint64_t hash = detail::mix_bits(
      static_cast<uint64_t>(placement.kind_) |
      static_cast<uint64_t>(placement.op_) << 8 |
      static_cast<uint64_t>(static_cast<uint32_t>(placement.dim_)) << 32);
  if (placement.offset_shape_) {
    hash = detail::hash_combine(
        hash, c10::ArrayRef<int64_t>(*placement.offset_shape_));
  }
  return hash;
}

std::string Placement::str() const {
  switch (kind_) {
    case Kind::Replicate:
      return "R";
    case Kind::Shard:
      return c10::str("S(", dim_, ")");
    case Kind::Partial:
      return c10::str("P(", to_string(op_), ")");
    case Kind::MaskPartial:
      return "MaskP";
  }
  TORCH_INTERNAL_ASSERT(false, "placement of an unknown kind");
}

std::string Placement::repr() const {
  std::ostringstream out;
  switch (kind_) {
    case Kind::Replicate:
      out << "Replicate()";
      break;
    case Kind::Shard:
      out << "Shard(dim=" << dim_ << ")";
      break;
    case Kind::Partial:
      out << "Partial(" << to_string(op_) << ")";
      break;
    case Kind::MaskPartial:
      out << "MaskPartial(offset_shape=" << offset_shape()
          << ", offset_dim=" << dim_ << ")";
      break;
  }
  return out.str();
}

Placement Shard(int64_t dim) {
  Placement placement;
  placement.kind_ = Placement::Kind::Shard;
  placement.dim_ = checked_dim(dim, "Shard");
  return placement;
}

Placement Partial(ReduceOp op) {
  Placement placement;
  placement.kind_ = Placement::Kind::Partial;
  placement.op_ = op;
  return placement;
}

Placement Partial(std::string_view op) { return Partial(parse_reduce_op(op)); }

Placement MaskPartial(c10::ArrayRef<int64_t> offset_shape, int64_t offset_dim) {
  const auto ndim = static_cast<int64_t>(offset_shape.size());
  TORCH_CHECK_VALUE(
      offset_dim >= -ndim && offset_dim < ndim,
      "[MaskPartial] expected a dimension of the table, whose shape is ",
      offset_shape,
      ", but got ",
      offset_dim);
  Placement placement;
  placement.kind_ = Placement::Kind::MaskPartial;
  placement.dim_ = checked_dim(
      offset_dim < 0 ? offset_dim + ndim : offset_dim, "MaskPartial");
  placement.offset_shape_ =
      std::make_shared<const std::vector<int64_t>>(offset_shape.vec());
  return placement;
}

std::string to_string(PlacementsRef placements) {
  std::string text = "[";
  for (const Placement& placement : placements) {
    if (text.size() > 1) {
      text += ", ";
    }
    text += placement.str();
  }
  return text + "]";
}

Placements parse_placements(std::string_view text) {
  std::string_view rest = trimmed(text);
  if (rest.starts_with('[')) {
    TORCH_CHECK_VALUE(
        rest.ends_with(']') && rest.size() > 1,
        "[parse_placements] expected a closing ] at the end of \"",
        text,
        "\"");
    rest = trimmed(rest.substr(1, rest.size() - 2));
    if (rest.empty()) {
      return {};
    }
  }
  Placements placements;
  while (true) {
    const size_t comma = rest.find(',');
    placements.push_back(parse_placement(trimmed(rest.substr(0, comma))));
    if (comma == std::string_view::npos) {
      return placements;
    }
    rest.remove_prefix(comma + 1);
  }
}

std::ostream& operator<<(std::ostream& out, const Placement& p) {
  return out << p.str();
}

}  // namespace tessera
