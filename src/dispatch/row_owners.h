// Who holds which rows of a dimension that several mesh dimensions may shard.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/mesh.h"
#include "tessera/placement.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

// Rows [begin, end) of the whole.
struct RowRange {
  int64_t begin;
  int64_t end;
  int64_t count() const { return end - begin; }
};

// The ranks between which the rows of one tensor dimension are divided, in the
// order of their parts: row-major over the mesh dimensions that shard it.
class RowOwners {
 public:
  RowOwners(const DeviceMesh& mesh, PlacementsRef placements, int64_t dim)
      : mesh_(mesh) {
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      if (placements[m].is_shard(dim)) {
        mesh_dims_.push_back(m);
      }
    }
  }

  const std::vector<int64_t>& mesh_dims() const { return mesh_dims_; }

  int64_t count() const {
    int64_t owners = 1;
    for (const int64_t m : mesh_dims_) {
      owners *= mesh_.size(m);
    }
    return owners;
  }

  // The coordinate of an owner on the i-th of its mesh dimensions.
  int64_t coordinate(int64_t owner, size_t i) const {
    return owner / stride(i) % mesh_.size(mesh_dims_[i]);
  }

  // The owner that differs from `owner` in that coordinate.
  int64_t moved(int64_t owner, size_t i, int64_t coordinate) const {
    return owner + (coordinate - this->coordinate(owner, i)) * stride(i);
  }

  // The owner that stands at these coordinates of the mesh.
  template <typename Coordinate>
  int64_t at(Coordinate coordinate) const {
    int64_t owner = 0;
    for (const int64_t m : mesh_dims_) {
      owner = owner * mesh_.size(m) + coordinate(m);
    }
    return owner;
  }

  // The rows of each owner where there are `n`, by torch.chunk.
  std::vector<RowRange> chunks(int64_t n) const {
    std::vector<RowRange> parts{{0, n}};
    for (const int64_t m : mesh_dims_) {
      std::vector<RowRange> finer;
      for (const auto& part : parts) {
        for (int64_t c = 0; c < mesh_.size(m); ++c) {
          const auto range = chunk(part.count(), mesh_.size(m), c);
          const int64_t begin = part.begin + range.begin;
          finer.push_back({begin, begin + range.size});
        }
      }
      parts = std::move(finer);
    }
    return parts;
  }

 private:
  int64_t stride(size_t i) const {
    int64_t stride = 1;
    for (size_t inner = i + 1; inner < mesh_dims_.size(); ++inner) {
      stride *= mesh_.size(mesh_dims_[inner]);
    }
    return stride;
  }

  const DeviceMesh& mesh_;
  std::vector<int64_t> mesh_dims_;
};

}  // namespace tessera::detail
