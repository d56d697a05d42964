#include "core/mesh_data.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <numeric>

#include "core/hash.h"
#include "core/intern_table.h"

namespace tessera::detail {
namespace {

// A mesh's value by reference, to look it up without building it.
struct MeshKey {
  std::string_view device_type;
  ProcessContext process_context;
  c10::ArrayRef<int64_t> ranks;
  c10::ArrayRef<int64_t> shape;
  c10::ArrayRef<std::string> names;
  c10::ArrayRef<int64_t> active;
};

InternTable<MeshData>& mesh_table() {
  static auto* const table = new InternTable<MeshData>;
  return *table;
}

bool same_process_context(const ProcessContext& a, const ProcessContext& b) {
  return a.world_id == b.world_id && a.world_size == b.world_size &&
         a.rank == b.rank;
}

uint64_t hash_of(const MeshKey& key) {
  uint64_t hash = hash_combine(0, key.device_type);
  hash = hash_combine(hash, key.process_context.world_id);
  hash = hash_combine(hash, key.ranks);
  hash = hash_combine(hash, key.shape);
  hash = hash_combine(hash, key.active);
  for (const std::string& name : key.names) {
    hash = hash_combine(hash, std::string_view(name));
  }
  return hash;
}

bool equal(const MeshData& mesh, const MeshKey& key) {
  return same_process_context(mesh.process_context, key.process_context) &&
         key.active == mesh.active && key.shape == mesh.root_shape &&
         key.ranks == mesh.root_ranks && key.device_type == mesh.device_type &&
         key.names == mesh.root_names;
}

std::unique_ptr<const MeshData> build(const MeshKey& key, uint64_t hash) {
  auto mesh = std::make_unique<MeshData>();
  mesh->device_type = key.device_type;
  mesh->process_context = key.process_context;
  mesh->root_ranks = key.ranks.vec();
  mesh->root_shape = key.shape.vec();
  mesh->root_names = key.names.vec();
  mesh->active = key.active.vec();
  mesh->hash = hash;

  std::vector<int64_t> root_strides(key.shape.size(), 1);
  for (size_t d = key.shape.size(); d-- > 1;) {
    root_strides[d - 1] = root_strides[d] * key.shape[d];
  }
  for (const int64_t d : key.active) {
    mesh->shape.push_back(key.shape[d]);
    mesh->position_strides.push_back(root_strides[d]);
    mesh->size *= key.shape[d];
    if (!key.names.empty()) {
      mesh->names.push_back(key.names[d]);
    }
  }

  mesh->position_of_rank.assign(key.process_context.world_size, -1);
  for (size_t position = 0; position < key.ranks.size(); ++position) {
    mesh->position_of_rank[key.ranks[position]] =
        static_cast<int64_t>(position);
  }
  if (key.process_context.simulated()) {
    mesh->local_positions.resize(key.ranks.size());
    std::iota(mesh->local_positions.begin(), mesh->local_positions.end(), 0);
  } else if (mesh->position_of_rank[key.process_context.rank] >= 0) {
    mesh->local_positions = {mesh->position_of_rank[key.process_context.rank]};
  }
  return mesh;
}

MeshDataPtr intern(const MeshKey& key) {
  const uint64_t hash = hash_of(key);
  return mesh_table().find_or_make(
      hash,
      [&](const MeshData& mesh) { return equal(mesh, key); },
      [&] { return build(key, hash); });
}

void check_device_type(const char* caller, std::string_view device_type) {
  bool known = false;
  try {
    known = !c10::Device(std::string(device_type)).has_index();
  } catch (const c10::Error&) {
    known = false;  // not a device at all; reported below as a wrong value
  }
  TORCH_CHECK_VALUE(
      known,
      "[",
      caller,
      "] expected a device type such as \"cpu\" or \"cuda\", without an index, "
      "but got \"",
      device_type,
      "\"");
}

void check_ranks(
    const char* caller, c10::ArrayRef<int64_t> ranks, int64_t world_size) {
  std::vector<bool> seen(world_size, false);
  for (const int64_t rank : ranks) {
    TORCH_CHECK_VALUE(
        rank >= 0 && rank < world_size,
        "[",
        caller,
        "] rank ",
        rank,
        " is outside the world, whose ranks are 0 to ",
        world_size - 1);
    TORCH_CHECK_VALUE(
        !seen[rank],
        "[",
        caller,
        "] rank ",
        rank,
        " is named twice; a mesh holds each rank once");
    seen[rank] = true;
  }
}

void check_names(
    const char* caller,
    c10::ArrayRef<std::string> names,
    c10::ArrayRef<int64_t> shape) {
  TORCH_CHECK_VALUE(
      names.empty() || names.size() == shape.size(),
      "[",
      caller,
      "] the mesh has ",
      shape.size(),
      " dimensions but ",
      names.size(),
      " dimension names were given; give one for each, or none");
  for (auto it = names.begin(); it != names.end(); ++it) {
    TORCH_CHECK_VALUE(
        !it->empty(), "[", caller, "] a dimension name must not be empty");
    TORCH_CHECK_VALUE(
        std::find(names.begin(), it, *it) == it,
        "[",
        caller,
        "] two dimensions of the mesh are called \"",
        *it,
        "\"; their names must differ");
  }
}

}  // namespace

ProcessContext require_process_context(const char* caller) {
  const auto process_context = current_process_context();
  TORCH_CHECK(
      process_context.has_value(),
      "[",
      caller,
      "] a mesh is made of the ranks of a World, and none has been entered; "
      "make one first and keep it, for example auto world = "
      "World::simulate(4)");
  return *process_context;
}

int64_t checked_mesh_size(const char* caller, c10::ArrayRef<int64_t> shape) {
  TORCH_CHECK_VALUE(
      !shape.empty(),
      "[",
      caller,
      "] expected a mesh shape of at least one dimension, but got []");
  uint64_t size = 1;
  for (const int64_t extent : shape) {
    TORCH_CHECK_VALUE(
        extent > 0,
        "[",
        caller,
        "] expected positive extents, but got the mesh shape ",
        shape);
    const bool overflow =
        c10::mul_overflows(size, static_cast<uint64_t>(extent), &size) ||
        size > static_cast<uint64_t>(INT64_MAX);
    TORCH_CHECK_VALUE(
        !overflow, "[", caller, "] the mesh shape ", shape, " is too large");
  }
  return static_cast<int64_t>(size);
}

MeshDataPtr intern_root_mesh(
    const char* caller,
    std::string_view device_type,
    c10::ArrayRef<int64_t> ranks,
    c10::ArrayRef<int64_t> shape,
    c10::ArrayRef<std::string> dim_names) {
  const ProcessContext process_context = require_process_context(caller);
  check_device_type(caller, device_type);
  const int64_t size = checked_mesh_size(caller, shape);
  TORCH_CHECK_VALUE(
      size == static_cast<int64_t>(ranks.size()),
      "[",
      caller,
      "] a mesh of shape ",
      shape,
      " takes ",
      size,
      " ranks but ",
      ranks.size(),
      " were given");
  check_ranks(caller, ranks, process_context.world_size);
  check_names(caller, dim_names, shape);
  c10::SmallVector<int64_t, 4> active(shape.size());
  std::iota(active.begin(), active.end(), 0);
  return intern(
      {device_type, process_context, ranks, shape, dim_names, active});
}

MeshDataPtr intern_slice(const MeshData& mesh, c10::ArrayRef<int64_t> active) {
  return intern(
      {mesh.device_type,
       mesh.process_context,
       mesh.root_ranks,
       mesh.root_shape,
       mesh.root_names,
       active});
}

}  // namespace tessera::detail
