#include "tessera/mesh.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>
#include <ostream>
#include <sstream>

#include "core/mesh_data.h"

namespace tessera {
namespace {

template <class List>
std::string joined(const List& values, const char* separator) {
  std::ostringstream out;
  const char* before = "";
  for (const auto& value : values) {
    out << before << value;
    before = separator;
  }
  return out.str();
}

// "[0, 1, 2, 3]"; long lists are shortened, so that messages stay readable.
std::string ranks_text(const std::vector<int64_t>& ranks) {
  constexpr size_t kMost = 16;
  if (ranks.size() <= kMost) {
    return c10::str("[", joined(ranks, ", "), "]");
  }
  const c10::ArrayRef<int64_t> all(ranks);
  return c10::str(
      "[", joined(all.slice(0, 3), ", "), ", ..., ", ranks.back(), "]");
}

// A dimension of the mesh from one that may count from the end.
int64_t wrap_dim(const char* caller, int64_t dim, int64_t ndim) {
  TORCH_CHECK_INDEX(
      dim >= -ndim && dim < ndim,
      "[",
      caller,
      "] the mesh has ",
      ndim,
      " dimensions, so a dimension is expected in ",
      -ndim,
      " to ",
      ndim - 1,
      ", but got ",
      dim);
  return dim < 0 ? dim + ndim : dim;
}

void check_position(
    const char* caller, const detail::MeshData& mesh, int64_t position) {
  const auto count = static_cast<int64_t>(mesh.root_ranks.size());
  TORCH_CHECK_INDEX(
      position >= 0 && position < count,
      "[",
      caller,
      "] the mesh has the positions 0 to ",
      count - 1,
      ", but got ",
      position);
}

// Requires: both are in range.
int64_t coordinate_at(
    const detail::MeshData& mesh, int64_t position, int64_t dim) {
  return position / mesh.position_strides[dim] % mesh.shape[dim];
}

// The position of this process's one rank; -1 where it is outside the mesh.
int64_t own_position(const char* caller, const detail::MeshData& mesh) {
  TORCH_CHECK(
      !mesh.process_context.simulated() || mesh.process_context.world_size == 1,
      "[",
      caller,
      "] all ",
      mesh.process_context.world_size,
      " ranks of a simulated world live in this process, so it has no "
      "coordinate of its own; use coordinate(position, dim)");
  return mesh.local_positions.empty() ? -1 : mesh.local_positions.front();
}

// The active dimension called `name`.
int64_t named_dim(
    const char* caller, const detail::MeshData& mesh, std::string_view name) {
  TORCH_CHECK_VALUE(
      !mesh.names.empty(),
      "[",
      caller,
      "] the dimensions of this mesh have no names, so there is no \"",
      name,
      "\"; give dim_names when the mesh is made");
  const auto it = std::find(mesh.names.begin(), mesh.names.end(), name);
  TORCH_CHECK_VALUE(
      it != mesh.names.end(),
      "[",
      caller,
      "] no dimension of the mesh is called \"",
      name,
      "\"; its dimensions are ",
      joined(mesh.names, ", "));
  return it - mesh.names.begin();
}

}  // namespace

DeviceMesh::DeviceMesh(
    std::string_view device_type,
    c10::ArrayRef<int64_t> ranks,
    c10::ArrayRef<int64_t> shape,
    c10::ArrayRef<std::string> dim_names)
    : data_(detail::intern_root_mesh(
          "DeviceMesh", device_type, ranks, shape, dim_names)) {}

DeviceMesh::DeviceMesh(
    std::string_view device_type, c10::ArrayRef<int64_t> ranks)
    : DeviceMesh(device_type, ranks, {static_cast<int64_t>(ranks.size())}, {}) {
}

const std::string& DeviceMesh::device_type() const {
  return data_->device_type;
}

int64_t DeviceMesh::ndim() const {
  return static_cast<int64_t>(data_->shape.size());
}

int64_t DeviceMesh::size() const { return data_->size; }

int64_t DeviceMesh::size(int64_t dim) const {
  return data_->shape[wrap_dim("DeviceMesh::size", dim, ndim())];
}

c10::ArrayRef<int64_t> DeviceMesh::shape() const { return data_->shape; }

c10::ArrayRef<std::string> DeviceMesh::dim_names() const {
  return data_->names;
}

int64_t DeviceMesh::dim(std::string_view name) const {
  return named_dim("DeviceMesh::dim", *data_, name);
}

DeviceMesh DeviceMesh::operator[](std::string_view dim_name) const {
  const int64_t dim = named_dim("DeviceMesh::operator[]", *data_, dim_name);
  return DeviceMesh(detail::intern_slice(*data_, {data_->active[dim]}));
}

DeviceMesh DeviceMesh::slice(c10::ArrayRef<std::string> dim_names) const {
  constexpr const char* kCaller = "DeviceMesh::slice";
  TORCH_CHECK_VALUE(
      !dim_names.empty(),
      "[",
      kCaller,
      "] expected the names of the dimensions to keep, but got none");
  c10::SmallVector<int64_t, 4> active;
  for (const std::string& name : dim_names) {
    const int64_t root_dim = data_->active[named_dim(kCaller, *data_, name)];
    TORCH_CHECK_VALUE(
        std::find(active.begin(), active.end(), root_dim) == active.end(),
        "[",
        kCaller,
        "] the dimension \"",
        name,
        "\" is named twice");
    TORCH_CHECK_VALUE(
        active.empty() || active.back() < root_dim,
        "[",
        kCaller,
        "] the dimensions ",
        joined(dim_names, ", "),
        " are not in the order of the mesh, which is ",
        joined(data_->names, ", "));
    active.push_back(root_dim);
  }
  return DeviceMesh(detail::intern_slice(*data_, active));
}

std::optional<std::vector<int64_t>> DeviceMesh::get_coordinate() const {
  const int64_t position = own_position("DeviceMesh::get_coordinate", *data_);
  if (position < 0) {
    return std::nullopt;
  }
  std::vector<int64_t> coordinates(data_->shape.size());
  for (int64_t d = 0; d < ndim(); ++d) {
    coordinates[d] = coordinate_at(*data_, position, d);
  }
  return coordinates;
}

int64_t DeviceMesh::get_local_rank(int64_t dim) const {
  constexpr const char* kCaller = "DeviceMesh::get_local_rank";
  dim = wrap_dim(kCaller, dim, ndim());
  const int64_t position = own_position(kCaller, *data_);
  TORCH_CHECK(
      position >= 0,
      "[",
      kCaller,
      "] rank ",
      data_->process_context.rank,
      " of this process is outside ",
      str(),
      "; ask contains(rank) first");
  return coordinate_at(*data_, position, dim);
}

std::vector<int64_t> DeviceMesh::ranks(int64_t rank) const {
  const int64_t position = position_of(rank);
  TORCH_CHECK_VALUE(
      position >= 0,
      "[DeviceMesh::ranks] rank ",
      rank,
      " is outside ",
      str(),
      "; ask contains(rank) first");
  // Where the slice that holds `position` begins.
  int64_t origin = position;
  for (int64_t d = 0; d < ndim(); ++d) {
    origin -= coordinate_at(*data_, position, d) * data_->position_strides[d];
  }
  std::vector<int64_t> ranks(data_->size);
  for (int64_t i = 0; i < data_->size; ++i) {
    int64_t at = origin;
    int64_t rest = i;
    for (int64_t d = ndim() - 1; d >= 0; --d) {
      at += rest % data_->shape[d] * data_->position_strides[d];
      rest /= data_->shape[d];
    }
    ranks[i] = data_->root_ranks[at];
  }
  return ranks;
}

c10::ArrayRef<int64_t> DeviceMesh::all_ranks() const {
  return data_->root_ranks;
}

bool DeviceMesh::contains(int64_t rank) const { return position_of(rank) >= 0; }

c10::ArrayRef<int64_t> DeviceMesh::local_positions() const {
  return data_->local_positions;
}

int64_t DeviceMesh::position_of(int64_t rank) const {
  const bool in_world = rank >= 0 && rank < data_->process_context.world_size;
  return in_world ? data_->position_of_rank[rank] : -1;
}

int64_t DeviceMesh::coordinate(int64_t position, int64_t dim) const {
  constexpr const char* kCaller = "DeviceMesh::coordinate";
  check_position(kCaller, *data_, position);
  return coordinate_at(*data_, position, wrap_dim(kCaller, dim, ndim()));
}

c10::SmallVector<int64_t, 8> DeviceMesh::group(
    int64_t position, int64_t dim) const {
  constexpr const char* kCaller = "DeviceMesh::group";
  check_position(kCaller, *data_, position);
  dim = wrap_dim(kCaller, dim, ndim());
  const int64_t stride = data_->position_strides[dim];
  int64_t at = position - coordinate_at(*data_, position, dim) * stride;
  c10::SmallVector<int64_t, 8> positions(data_->shape[dim]);
  for (int64_t& member : positions) {
    member = at;
    at += stride;
  }
  return positions;
}

bool DeviceMesh::simulated() const {
  return data_->process_context.simulated();
}

uint64_t DeviceMesh::world_id() const {
  return data_->process_context.world_id;
}

size_t DeviceMesh::hash() const { return data_->hash; }

std::string DeviceMesh::str() const {
  std::string text =
      "DeviceMesh(" + data_->device_type + ", " + joined(data_->shape, "x");
  if (!data_->names.empty()) {
    text += ", " + joined(data_->names, " x ");
  }
  if (data_->active.size() != data_->root_shape.size()) {
    text += ", slice of " + joined(data_->root_shape, "x");
  }
  return text + ", ranks " + ranks_text(data_->root_ranks) + ")";
}

DeviceMesh init_device_mesh(
    std::string_view device_type,
    c10::ArrayRef<int64_t> shape,
    c10::ArrayRef<std::string> dim_names) {
  constexpr const char* kCaller = "init_device_mesh";
  const int64_t world_size =
      detail::require_process_context(kCaller).world_size;
  const int64_t size = detail::checked_mesh_size(kCaller, shape);
  TORCH_CHECK_VALUE(
      size <= world_size,
      "[",
      kCaller,
      "] a mesh of shape ",
      shape,
      " takes ",
      size,
      " ranks, but the world has ",
      world_size);
  std::vector<int64_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return DeviceMesh(device_type, ranks, shape, dim_names);
}

std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh) {
  return out << mesh.str();
}

}  // namespace tessera
