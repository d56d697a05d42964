#include "tessera/spec.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

#include "core/hash.h"
#include "core/intern_table.h"

namespace tessera {
namespace {

detail::InternTable<Spec>& spec_table() {
  static auto* const table = new detail::InternTable<Spec>;
  return *table;
}

uint64_t hash_of(
    const DeviceMesh& mesh,
    PlacementsRef placements,
    SizesRef sizes,
    SizesRef strides,
    c10::ScalarType dtype,
    c10::ScalarType shard_dtype) {
  uint64_t hash = detail::hash_combine(
      mesh.hash(),
      static_cast<uint64_t>(dtype) | static_cast<uint64_t>(shard_dtype) << 8);
  for (const Placement& placement : placements) {
    hash = detail::hash_combine(
        hash, static_cast<uint64_t>(hash_value(placement)));
  }
  hash = detail::hash_combine(hash, sizes);
  return detail::hash_combine(hash, strides);
}

// Only a spec that is not in the table yet is checked: what is found there was
// checked when it was made.
void check_spec(
    const DeviceMesh& mesh,
    PlacementsRef placements,
    SizesRef sizes,
    SizesRef strides) {
  constexpr const char* kCaller = "Spec::make";
  TORCH_CHECK_VALUE(
      sizes.size() == strides.size(),
      "[",
      kCaller,
      "] expected one stride a dimension, but got sizes ",
      sizes,
      " and strides ",
      strides);
  TORCH_CHECK_VALUE(
      std::all_of(
          sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; }),
      "[",
      kCaller,
      "] expected sizes of 0 or more, but got ",
      sizes);
  const auto ndim = static_cast<int64_t>(sizes.size());
  for (const Placement& placement : placements) {
    TORCH_CHECK_VALUE(
        !placement.is_shard() || placement.dim() >= 0,
        "[",
        kCaller,
        "] expected shard dimensions that do not count from the end, but got ",
        to_string(placements),
        "; use normalize_placements");
  }
  normalize_placements(placements, mesh, ndim, kCaller);
}

void check_reductions_commute(PlacementsRef placements, const char* caller) {
  TORCH_CHECK_VALUE(
      reductions_commute(placements),
      "[",
      caller,
      "] the placements ",
      to_string(placements),
      " hold pending reductions of different kinds, whose order would matter: "
      "expected one kind (sum and avg go together)");
}

}  // namespace

int64_t Spec::numel() const {
  int64_t count = 1;
  for (const int64_t size : sizes) {
    count *= size;
  }
  return count;
}

SpecPtr Spec::make(
    const DeviceMesh& mesh,
    PlacementsRef placements,
    SizesRef sizes,
    SizesRef strides,
    c10::ScalarType dtype,
    c10::ScalarType shard_dtype) {
  if (shard_dtype == c10::ScalarType::Undefined) {
    shard_dtype = dtype;
  }
  const uint64_t hash =
      hash_of(mesh, placements, sizes, strides, dtype, shard_dtype);
  const auto equal = [&](const Spec& spec) {
    return spec.hash == hash && spec.mesh == mesh && spec.dtype == dtype &&
           spec.shard_dtype == shard_dtype && sizes == SizesRef(spec.sizes) &&
           strides == SizesRef(spec.strides) &&
           placements == PlacementsRef(spec.placements);
  };
  const auto build = [&] {
    check_spec(mesh, placements, sizes, strides);
    return std::unique_ptr<const Spec>(new Spec{
        mesh,
        Placements(placements.begin(), placements.end()),
        Sizes(sizes.begin(), sizes.end()),
        Sizes(strides.begin(), strides.end()),
        dtype,
        shard_dtype,
        hash});
  };
  return spec_table().find_or_make(hash, equal, build);
}

SpecPtr Spec::make(
    const DeviceMesh& mesh,
    PlacementsRef placements,
    SizesRef sizes,
    c10::ScalarType dtype) {
  return make(mesh, placements, sizes, row_major_strides(sizes), dtype);
}

SpecPtr Spec::with(PlacementsRef other) const {
  return make(mesh, other, sizes, strides, dtype);
}

SpecPtr Spec::with(c10::ScalarType other) const {
  return make(mesh, placements, sizes, strides, other);
}

std::string Spec::str() const {
  std::ostringstream out;
  out << c10::toString(dtype) << SizesRef(sizes);
  if (strides != row_major_strides(sizes)) {
    out << " with strides " << SizesRef(strides);
  }
  out << " on " << to_string(placements) << " of " << mesh;
  if (shard_dtype != dtype) {
    out << ", terms in " << c10::toString(shard_dtype);
  }
  return out.str();
}

size_t live_spec_count() { return spec_table().size(); }

Sizes row_major_strides(SizesRef sizes) {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    // As ATen has it: the strides of an empty tensor are those of one whose
    // empty dimensions had one element.
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

bool reductions_commute(PlacementsRef placements) {
  const auto linear = [](ReduceOp op) {
    return op == ReduceOp::Sum || op == ReduceOp::Avg;
  };
  const Placement* first = nullptr;
  for (const Placement& placement : placements) {
    if (!placement.is_partial()) {
      continue;
    }
    if (first == nullptr) {
      first = &placement;
    } else if (
        first->reduce_op() != placement.reduce_op() &&
        !(linear(first->reduce_op()) && linear(placement.reduce_op()))) {
      return false;
    }
  }
  return true;
}

Placements normalize_placements(
    PlacementsRef placements,
    const DeviceMesh& mesh,
    int64_t ndim,
    const char* caller) {
  TORCH_CHECK_VALUE(
      static_cast<int64_t>(placements.size()) == mesh.ndim(),
      "[",
      caller,
      "] placements and mesh must have the same length, but the mesh has ",
      mesh.ndim(),
      " dimensions and ",
      placements.size(),
      " placements were given: ",
      to_string(placements));
  Placements normalized(placements.begin(), placements.end());
  for (Placement& placement : normalized) {
    if (!placement.is_shard()) {
      continue;
    }
    const int64_t dim = placement.dim();
    TORCH_CHECK_VALUE(
        dim >= -ndim && dim < ndim,
        "[",
        caller,
        "] shard dimension ",
        dim,
        " in ",
        to_string(placements),
        " is out of range for a tensor of ",
        ndim,
        " dimensions",
        ndim == 0 ? "; it can only be replicated or partial"
                  : c10::str("; expected ", -ndim, " to ", ndim - 1));
    if (dim < 0) {
      placement = Shard(dim + ndim);
    }
  }
  check_reductions_commute(normalized, caller);
  return normalized;
}

}  // namespace tessera
