// DeviceMesh, and what is taken for one.
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <unordered_map>

#include "convert.h"
#include "tessera/distribute.h"
#include "tessera/language.h"
#include "tessera/process_group.h"
#include "tessera/world.h"

namespace tessera::python {

namespace {

using Names = std::optional<std::vector<std::string>>;

std::vector<std::string> names_of(const Names& names) {
  return names.value_or(std::vector<std::string>());
}

// How many ranks the world of a mesh has. A mesh knows only its world's
// number; it is made while that world is the current one, and asked later.
std::unordered_map<uint64_t, int64_t>& world_sizes() {
  static auto* const sizes = new std::unordered_map<uint64_t, int64_t>;
  return *sizes;
}

DeviceMesh remember_world(DeviceMesh mesh) {
  world_sizes().try_emplace(mesh.world_id(), world_size());
  return mesh;
}

DeviceMesh make_mesh(
    const std::string& device_type, py::handle ranks, const Names& names) {
  ensure_world();
  py::object tensor = py::reinterpret_borrow<py::object>(ranks);
  if (!THPVariable_Check(tensor.ptr())) {
    tensor = py::module_::import("torch").attr("tensor")(
        tensor, py::arg("device") = "cpu");
  }
  return remember_world(
      device_mesh(device_type, tensor.cast<at::Tensor>(), names_of(names)));
}

int64_t dim_of(const DeviceMesh& mesh, py::handle dim, const char* caller) {
  if (py::isinstance<py::str>(dim)) return mesh.dim(dim.cast<std::string>());
  TORCH_CHECK(
      !dim.is_none() || mesh.ndim() == 1,
      "[",
      caller,
      "] ",
      mesh.str(),
      " has several dimensions: say which, by number or name");
  return dim.is_none() ? 0 : as_int(dim, caller, "mesh_dim");
}

// The ranks as a tensor of the mesh's shape: in a slice, those of this rank's
// own copy of it.
at::Tensor rank_tensor(const DeviceMesh& mesh) {
  const auto all = mesh.all_ranks();
  std::vector<int64_t> ranks(all.begin(), all.end());
  if (static_cast<int64_t>(ranks.size()) != mesh.size()) {
    TORCH_CHECK(
        !mesh.simulated() && !mesh.local_positions().empty(),
        "[DeviceMesh.mesh] ",
        mesh.str(),
        " is a slice of which several copies live here");
    ranks = mesh.ranks(all[mesh.local_positions()[0]]);
  }
  return at::tensor(ranks, at::kLong).view(mesh.shape());
}

DeviceMesh slice(const DeviceMesh& mesh, py::handle names) {
  if (py::isinstance<py::str>(names)) return mesh[names.cast<std::string>()];
  TORCH_CHECK_TYPE(
      py::isinstance<py::list>(names) || py::isinstance<py::tuple>(names),
      "[DeviceMesh] expected the name of a mesh dimension or a list of names, "
      "got ",
      describe(names));
  std::vector<std::string> wanted;
  for (const auto& name : names.cast<py::sequence>()) {
    TORCH_CHECK_TYPE(
        py::isinstance<py::str>(name),
        "[DeviceMesh] expected names of mesh dimensions, got ",
        describe(name));
    wanted.push_back(name.cast<std::string>());
  }
  return mesh.slice(wanted);
}

// As torch's DeviceMesh, which raises a KeyError for names that do not fit.
DeviceMesh item(const DeviceMesh& mesh, py::handle names) {
  try {
    return slice(mesh, names);
  } catch (const c10::ValueError& error) {
    throw py::key_error(spell(error.what_without_backtrace()));
  }
}

py::object dim_names(const DeviceMesh& mesh) {
  const auto names = mesh.dim_names();
  if (names.empty()) return py::none();
  py::tuple result(names.size());
  for (size_t i = 0; i < names.size(); ++i) result[i] = py::str(names[i]);
  return result;
}

}  // namespace

void ensure_world() { py::module_::import("tessera._world").attr("ensure")(); }

DeviceMesh as_mesh(py::handle mesh, const char* caller) {
  if (py::isinstance<DeviceMesh>(mesh)) return mesh.cast<const DeviceMesh&>();
  return py::module_::import("tessera._world")
      .attr("mesh_of")(mesh, caller)
      .cast<DeviceMesh>();
}

py::tuple to_python(SizesRef sizes) {
  py::tuple result(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) result[i] = py::int_(sizes[i]);
  return result;
}

Sizes as_sizes(py::handle sizes, const char* caller) {
  TORCH_CHECK_TYPE(
      is_sequence(sizes),
      "[",
      caller,
      "] expected a sequence of integers, got ",
      describe(sizes));
  Sizes result;
  for (const auto& size : sizes.cast<py::sequence>()) {
    result.push_back(as_int(size, caller, "an element of a shape"));
  }
  return result;
}

void bind_meshes(py::module_& m) {
  py::class_<DeviceMesh>(
      m,
      "DeviceMesh",
      "Ranks in an n-d grid. `mesh` is a list of ranks, nested for several "
      "dimensions, or a tensor. Immutable; compared by value.")
      .def(
          py::init(&make_mesh),
          py::arg("device_type"),
          py::arg("mesh"),
          py::kw_only(),
          py::arg("mesh_dim_names") = py::none())
      .def_property_readonly("device_type", &DeviceMesh::device_type)
      .def_property_readonly("ndim", &DeviceMesh::ndim)
      .def_property_readonly(
          "shape",
          [](const DeviceMesh& mesh) { return to_python(mesh.shape()); })
      .def_property_readonly("mesh_dim_names", &dim_names)
      .def_property_readonly(
          "mesh", &rank_tensor, "The ranks, as a tensor of the mesh's shape.")
      .def(
          "size",
          [](const DeviceMesh& mesh, py::object dim) {
            return dim.is_none() ? mesh.size()
                                 : mesh.size(dim_of(mesh, dim, "size"));
          },
          py::arg("mesh_dim") = py::none(),
          "The number of ranks, of one dimension or of the whole.")
      .def(
          "get_coordinate",
          &DeviceMesh::get_coordinate,
          "This process's coordinates; None outside the mesh.")
      .def(
          "get_local_rank",
          [](const DeviceMesh& mesh, py::object dim) {
            return mesh.get_local_rank(dim_of(mesh, dim, "get_local_rank"));
          },
          py::arg("mesh_dim") = py::none(),
          "This process's coordinate on one dimension.")
      .def(
          "get_group",
          [](const DeviceMesh& mesh, py::object dim) {
            const int64_t wanted = dim_of(mesh, dim, "get_group");
            py::gil_scoped_release no_gil;
            return get_group(mesh, wanted);
          },
          py::arg("mesh_dim") = py::none(),
          "The c10d backend that connects this rank's group. Connects at the "
          "first use.")
      .def(
          "contains",
          &DeviceMesh::contains,
          py::arg("rank"),
          "Whether a rank of the world is in the mesh.")
      .def_property_readonly(
          "ranks",
          [](const DeviceMesh& mesh) { return to_python(mesh.all_ranks()); },
          "All ranks that hold a shard, in the order of their shards.")
      .def_property_readonly(
          "local_ranks",
          [](const DeviceMesh& mesh) {
            Sizes ranks;
            for (const int64_t position : mesh.local_positions()) {
              ranks.push_back(mesh.all_ranks()[position]);
            }
            return to_python(SizesRef(ranks));
          },
          "Those of them that live in this process.")
      .def_property_readonly(
          "simulated",
          &DeviceMesh::simulated,
          "Whether all ranks live in this process.")
      .def_property_readonly("_world_id", &DeviceMesh::world_id)
      .def_property_readonly(
          "_world_size",
          [](const DeviceMesh& mesh) {
            // One that C++ has made is of the world that is entered.
            const auto found = world_sizes().find(mesh.world_id());
            return found == world_sizes().end() ? world_size() : found->second;
          })
      .def("__getitem__", &item, py::arg("mesh_dim_names"))
      .def(
          "__eq__",
          [](const DeviceMesh& a, py::handle b) {
            return py::isinstance<DeviceMesh>(b) &&
                   a == b.cast<const DeviceMesh&>();
          })
      .def("__hash__", &DeviceMesh::hash)
      .def("__repr__", &DeviceMesh::str)
      .def(
          "__enter__",
          [](py::object self) {
            self.cast<const DeviceMesh&>();  // one that is made
            py::module_::import("tessera._world").attr("enter_mesh")(self);
            return self;
          })
      .def(
          "__exit__",
          [](py::object self, const py::args&) {
            py::module_::import("tessera._world").attr("leave_mesh")(self);
          })
      .def("__reduce__", [](py::object self) {
        return py::make_tuple(
            py::module_::import("tessera._world").attr("rebuild_mesh"),
            py::make_tuple(
                self.attr("device_type"),
                self.attr("mesh").attr("tolist")(),
                self.attr("mesh_dim_names")));
      });

  m.def(
      "init_device_mesh",
      [](const std::string& device_type, py::handle shape, const Names& names) {
        ensure_world();
        return remember_world(init_device_mesh(
            device_type, as_sizes(shape, "init_device_mesh"), names_of(names)));
      },
      py::arg("device_type"),
      py::arg("mesh_shape"),
      py::kw_only(),
      py::arg("mesh_dim_names") = py::none(),
      "Arranges the first ranks of the world in a grid of this shape.");
}

}  // namespace tessera::python
