// A DeviceMesh arranges ranks in an n-d grid; each dimension has its own
// groups. Immutable, interned and cheap to copy; safe to share between threads.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/export.h"

namespace tessera {

namespace detail {
struct MeshData;
}

class TESSERA_API DeviceMesh {
 public:
  // Lays `ranks` of the current world out row-major over `shape`.
  // Throws c10::ValueError if the counts differ, a rank is outside the world or
  // named twice, or the names do not match the shape; c10::Error if no World
  // has been entered. Does not communicate.
  DeviceMesh(
      std::string_view device_type,
      c10::ArrayRef<int64_t> ranks,
      c10::ArrayRef<int64_t> shape,
      c10::ArrayRef<std::string> dim_names = {});
  // A 1-d mesh of these ranks.
  DeviceMesh(std::string_view device_type, c10::ArrayRef<int64_t> ranks);

  const std::string& device_type() const;
  int64_t ndim() const;
  // The product of shape(). For a slice of a mesh this is the number of ranks
  // in one copy of it.
  int64_t size() const;
  // The extent of one dimension; negative dims count from the end.
  int64_t size(int64_t dim) const;
  c10::ArrayRef<int64_t> shape() const;
  // Empty if the dimensions have no names.
  c10::ArrayRef<std::string> dim_names() const;
  // The dimension called `name`. Throws c10::ValueError if there is none.
  int64_t dim(std::string_view name) const;

  // The sub-mesh over the named dimensions. Each rank takes part in its own
  // copy of it: mesh["tp"] of a (dp, tp) mesh is, for every rank, the row of
  // ranks that share its dp coordinate. Throws c10::ValueError unless the names
  // are those of dimensions, in the order of the mesh.
  DeviceMesh operator[](std::string_view dim_name) const;
  DeviceMesh slice(c10::ArrayRef<std::string> dim_names) const;

  // The coordinates of this process's rank, or nullopt if it is not in the
  // mesh. Throws c10::Error in a simulated world of several ranks, since they
  // all live here: use coordinate(position, dim).
  std::optional<std::vector<int64_t>> get_coordinate() const;
  // The coordinate of this process's rank on `dim`. Throws c10::Error if the
  // rank is not in the mesh, and in a simulated world of several ranks.
  int64_t get_local_rank(int64_t dim = 0) const;

  // The ranks of the sub-mesh that `rank` belongs to, row-major over shape().
  // Requires: contains(rank).
  std::vector<int64_t> ranks(int64_t rank) const;
  // All ranks that hold a shard, in the order of their positions.
  c10::ArrayRef<int64_t> all_ranks() const;
  bool contains(int64_t rank) const;

  // Positions number all_ranks(); a distributed tensor holds one shard for each
  // position that lives in this process.
  c10::ArrayRef<int64_t> local_positions() const;
  // The position of `rank`, or -1 if it is not in the mesh.
  int64_t position_of(int64_t rank) const;
  // The coordinate of a position on mesh dimension `dim`.
  int64_t coordinate(int64_t position, int64_t dim) const;
  // The positions of the group along `dim` that `position` belongs to, by
  // coordinate.
  c10::SmallVector<int64_t, 8> group(int64_t position, int64_t dim) const;

  // True where all ranks of the mesh's world live in this process.
  bool simulated() const;
  // Which world the mesh was made in (each World has its own number).
  uint64_t world_id() const;

  // By value: device type, ranks, shape, names and world. As meshes are
  // interned, this compares two pointers.
  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
    return a.data_ == b.data_;
  }
  size_t hash() const;

  // DeviceMesh(cpu, 2x2, dp x tp, ranks [0, 1, 2, 3])
  std::string str() const;

 private:
  explicit DeviceMesh(std::shared_ptr<const detail::MeshData> data)
      : data_(std::move(data)) {}

  std::shared_ptr<const detail::MeshData> data_;
};

// Arranges the first product(shape) ranks of the world row-major. Throws
// c10::ValueError if the world has fewer.
TESSERA_API DeviceMesh init_device_mesh(
    std::string_view device_type,
    c10::ArrayRef<int64_t> shape,
    c10::ArrayRef<std::string> dim_names = {});

TESSERA_API std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh);

}  // namespace tessera
