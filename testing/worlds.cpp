#include "testing/worlds.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <numeric>

namespace tessera::testing {

bool over_processes() {
  return std::getenv("RANK") != nullptr && std::getenv("WORLD_SIZE") != nullptr;
}

World& test_world() {
  static World world = World::from_environment(/*otherwise_simulate=*/4);
  return world;
}

bool outside(const DeviceMesh& mesh) { return mesh.local_positions().empty(); }

const std::vector<std::vector<int64_t>>& mesh_shapes() {
  static const std::vector<std::vector<int64_t>> shapes{
      {1}, {2}, {3}, {4}, {2, 2}, {2, 2, 2}};
  return shapes;
}

bool with_mesh(
    c10::ArrayRef<int64_t> shape,
    const std::function<void(const DeviceMesh&)>& body) {
  const int64_t ranks = std::accumulate(
      shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  const auto run = [&] {
    const auto mesh = init_device_mesh("cpu", shape);
    SCOPED_TRACE(mesh.str());
    body(mesh);
  };
  if (over_processes()) {
    if (test_world().size() < ranks) return false;
    run();
  } else {
    const World world = World::simulate(ranks);
    run();
  }
  return true;
}

void for_each_mesh(const std::function<void(const DeviceMesh&)>& body) {
  for (const auto& shape : mesh_shapes()) with_mesh(shape, body);
}

void for_each_mesh_dim(
    const std::function<void(const DeviceMesh&, int64_t dim)>& body) {
  for_each_mesh([&](const DeviceMesh& mesh) {
    for (int64_t dim = 0; dim < mesh.ndim(); ++dim) body(mesh, dim);
  });
}

}  // namespace tessera::testing
