// Who holds which part of a distributed tensor.
#include <c10/util/Exception.h>

#include <algorithm>

#include "tessera/dtensor.h"
#include "tessera/shard_math.h"

namespace tessera {

namespace {

int64_t wrapped_dim(const DTensor& tensor, int64_t dim, const char* caller) {
  TORCH_CHECK_INDEX(
      dim >= -tensor.dim() && dim < tensor.dim(),
      "[",
      caller,
      "] expected a dimension of a tensor that has ",
      tensor.dim(),
      ", but got ",
      dim);
  return dim < 0 ? dim + tensor.dim() : dim;
}

Range range_at(const Spec& spec, int64_t dim, int64_t position) {
  return local_range(
      spec.sizes[dim], dim, spec.mesh, spec.placements, position);
}

bool holds_nothing(const Spec& spec, int64_t position) {
  const auto shape =
      local_shape(spec.sizes, spec.mesh, spec.placements, position);
  return std::any_of(
      shape.begin(), shape.end(), [](int64_t size) { return size == 0; });
}

}  // namespace

Range DTensor::local_range(int64_t dim) const {
  dim = wrapped_dim(*this, dim, "local_range");
  const auto positions = mesh().local_positions();
  TORCH_CHECK(
      positions.size() <= 1,
      "[local_range] ",
      positions.size(),
      " ranks live in this process (the world is simulated): pass the rank");
  return positions.empty() ? Range{0, 0} : range_at(*spec(), dim, positions[0]);
}

Range DTensor::local_range(int64_t dim, int64_t rank) const {
  dim = wrapped_dim(*this, dim, "local_range");
  const int64_t position = mesh().position_of(rank);
  TORCH_CHECK_VALUE(
      position >= 0, "[local_range] rank ", rank, " is not in ", mesh().str());
  return range_at(*spec(), dim, position);
}

std::vector<int64_t> DTensor::owners(int64_t dim, int64_t index) const {
  dim = wrapped_dim(*this, dim, "owners");
  const int64_t n = size(dim);
  TORCH_CHECK_INDEX(
      index >= -n && index < n,
      "[owners] index ",
      index,
      " is out of range of dimension ",
      dim,
      ", which has size ",
      n);
  if (index < 0) {
    index += n;
  }
  const auto all = mesh().all_ranks();
  std::vector<int64_t> ranks;
  for (int64_t p = 0; p < static_cast<int64_t>(all.size()); ++p) {
    const auto range = range_at(*spec(), dim, p);
    if (index >= range.begin && index < range.begin + range.size &&
        !holds_nothing(*spec(), p)) {
      ranks.push_back(all[p]);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace tessera
