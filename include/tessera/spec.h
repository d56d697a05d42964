// A Spec is the layout of one distributed tensor: its mesh, its placements and
// the global sizes, strides and dtype. Specs are interned: two tensors have the
// same layout if and only if their spec pointers are equal.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/export.h"
#include "tessera/mesh.h"
#include "tessera/placement.h"

namespace tessera {

using Sizes = c10::SmallVector<int64_t, 5>;
using SizesRef = c10::ArrayRef<int64_t>;

struct Spec;
// Shared: a spec lives as long as a tensor or a cache entry refers to it.
using SpecPtr = std::shared_ptr<const Spec>;

struct TESSERA_API Spec {
  DeviceMesh mesh;
  Placements placements;
  Sizes sizes;
  Sizes strides;
  c10::ScalarType dtype;
  // The dtype of the shards: `dtype`, but float for a sum of half or bfloat16
  // numbers that an op left pending, which is rounded when it is reduced.
  c10::ScalarType shard_dtype;
  size_t hash;

  int64_t dim() const { return static_cast<int64_t>(sizes.size()); }
  int64_t numel() const;

  // The one spec with these values. Placements must be normalised (no negative
  // dims) and fit the mesh and the sizes; see normalize_placements. Without a
  // `shard_dtype` the shards have the tensor's.
  static SpecPtr make(
      const DeviceMesh& mesh,
      PlacementsRef placements,
      SizesRef sizes,
      SizesRef strides,
      c10::ScalarType dtype,
      c10::ScalarType shard_dtype = c10::ScalarType::Undefined);
  // As above, contiguous.
  static SpecPtr make(
      const DeviceMesh& mesh,
      PlacementsRef placements,
      SizesRef sizes,
      c10::ScalarType dtype);

  // This spec with other placements, or another dtype, which is the shards'
  // too.
  SpecPtr with(PlacementsRef other) const;
  SpecPtr with(c10::ScalarType other) const;

  // Float[8, 4] on [S(0)] of DeviceMesh(cpu, 4, ...)
  std::string str() const;
};

// How many specs are alive in this process; for tests of boundedness.
TESSERA_API size_t live_spec_count();

TESSERA_API Sizes row_major_strides(SizesRef sizes);

// Whether pending reductions on several mesh dimensions give the same result in
// any order. Sum and Avg commute, and each reduction commutes with itself.
TESSERA_API bool reductions_commute(PlacementsRef placements);

// Makes shard dims non-negative. Throws c10::ValueError, tagged with `caller`,
// if the number of placements is not that of the mesh's dimensions, a shard dim
// is out of range for a tensor of `ndim` dimensions, or pending reductions do
// not commute (a sum on one mesh dimension and a max on another).
TESSERA_API Placements normalize_placements(
    PlacementsRef placements,
    const DeviceMesh& mesh,
    int64_t ndim,
    const char* caller);

}  // namespace tessera
