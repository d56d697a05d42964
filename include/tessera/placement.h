// A Placement says how a tensor is laid out over ONE dimension of a mesh:
// replicated, sharded along a tensor dimension, or partial (each rank holds a
// term of a pending reduction). Placements are immutable values.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/export.h"

namespace tessera {

// The reductions that may be pending in a Partial placement.
enum class ReduceOp : uint8_t { Sum, Avg, Product, Min, Max };

// "sum", "avg", "product", "min", "max".
TESSERA_API std::string_view to_string(ReduceOp op);
// The inverse. Throws c10::ValueError on any other text.
TESSERA_API ReduceOp parse_reduce_op(std::string_view text);

class TESSERA_API Placement {
 public:
  enum class Kind : uint8_t {
    Replicate,    // every rank holds the whole tensor
    Shard,        // each rank holds a chunk of tensor dimension dim()
    Partial,      // each rank holds one term of a reduction by reduce_op()
    MaskPartial,  // Partial whose terms are zero outside the rank's own rows
  };

  // Replicate.
  Placement() = default;

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::Replicate; }
  bool is_shard() const { return kind_ == Kind::Shard; }
  bool is_shard(int64_t dim) const { return is_shard() && dim_ == dim; }
  // True for Partial and MaskPartial: a reduction is pending.
  bool is_partial() const {
    return kind_ == Kind::Partial || kind_ == Kind::MaskPartial;
  }

  // The tensor dimension that is sharded. Requires: is_shard().
  int64_t dim() const { return dim_; }
  // The pending reduction. Requires: is_partial().
  ReduceOp reduce_op() const { return op_; }
  // The shape of the table that was looked up, and the dimension along which it
  // is sharded. Requires: kind() == MaskPartial.
  c10::ArrayRef<int64_t> offset_shape() const;
  int64_t offset_dim() const { return dim_; }

  friend TESSERA_API bool operator==(const Placement& a, const Placement& b);
  friend TESSERA_API size_t hash_value(const Placement& placement);

  // The short text: R, S(0), P(sum), MaskP.
  std::string str() const;
  // The long text, for machines: Shard(dim=0), MaskPartial(offset_shape=...).
  std::string repr() const;

 private:
  friend TESSERA_API Placement Shard(int64_t dim);
  friend TESSERA_API Placement Partial(ReduceOp op);
  friend TESSERA_API Placement
  MaskPartial(c10::ArrayRef<int64_t> offset_shape, int64_t offset_dim);

  Kind kind_ = Kind::Replicate;
  ReduceOp op_ = ReduceOp::Sum;
  int32_t dim_ = 0;
  std::shared_ptr<const std::vector<int64_t>> offset_shape_;
};

// Every rank holds the whole tensor.
inline Placement Replicate() { return {}; }
// Tensor dimension `dim` is split into chunks as by torch.chunk: the first
// ranks hold ceil(n / ranks) elements, the last ones fewer or none. A negative
// `dim` counts from the end and is normalized once the tensor is known.
TESSERA_API Placement Shard(int64_t dim);
// Each rank holds one term; the value of the tensor is the reduction of them.
TESSERA_API Placement Partial(ReduceOp op = ReduceOp::Sum);
// As above, by name. Throws c10::ValueError if the name is unknown.
TESSERA_API Placement Partial(std::string_view op);
// The result of a lookup in a table sharded along `offset_dim`: a pending sum
// in which a rank's term is zero for the rows of other ranks.
TESSERA_API Placement
MaskPartial(c10::ArrayRef<int64_t> offset_shape, int64_t offset_dim);

// One placement for each mesh dimension.
using Placements = c10::SmallVector<Placement, 4>;
using PlacementsRef = c10::ArrayRef<Placement>;

// "[S(0), R]"
TESSERA_API std::string to_string(PlacementsRef placements);
// The inverse, for tests and tools: "[S(0), R]", "S(0)", "P(max)". Throws
// c10::ValueError. MaskP, which carries a shape, has no short form to parse.
TESSERA_API Placements parse_placements(std::string_view text);

TESSERA_API std::ostream& operator<<(std::ostream& out, const Placement& p);

}  // namespace tessera
