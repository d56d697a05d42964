// ShardedTensor and how it is cut.
#include "tessera/sharded.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <sstream>

#include "convert.h"

namespace tessera::python {

namespace {

ShardPlacement as_shard_placement(py::handle placement) {
  if (py::isinstance<ShardPlacement>(placement)) {
    return placement.cast<ShardPlacement>();
  }
  if (PyIndex_Check(placement.ptr())) {
    return as_int(placement, "ShardPlacement", "placement");
  }
  // A text, or torch's _remote_device, which prints as one.
  return py::str(placement).cast<std::string>();
}

ChunkShardingSpec make_spec(int64_t dim, py::handle placements) {
  TORCH_CHECK_TYPE(
      py::isinstance<py::list>(placements) ||
          py::isinstance<py::tuple>(placements),
      "[ChunkShardingSpec] expected a list of placements like 'rank:0/cpu', "
      "got ",
      describe(placements));
  std::vector<ShardPlacement> list;
  for (const auto& placement : placements.cast<py::sequence>()) {
    list.push_back(as_shard_placement(placement));
  }
  return {dim, std::move(list)};
}

// Ours, or torch's ChunkShardingSpec.
ChunkShardingSpec as_spec(py::handle spec, const char* caller) {
  if (py::isinstance<ChunkShardingSpec>(spec)) {
    return spec.cast<const ChunkShardingSpec&>();
  }
  const auto type = py::type::of(spec);
  const auto name = py::str(type.attr("__name__")).cast<std::string>();
  TORCH_CHECK_TYPE(
      name == "ChunkShardingSpec" && py::hasattr(spec, "dim") &&
          py::hasattr(spec, "placements"),
      "[",
      caller,
      "] expected a ChunkShardingSpec, got ",
      describe(spec));
  const py::list placements(spec.attr("placements"));
  return make_spec(spec.attr("dim").cast<int64_t>(), placements);
}

ShardedTensor from_full(
    const at::Tensor& full, py::handle spec, bool same_on_all_ranks) {
  const auto wanted = as_spec(spec, "ShardedTensor.from_full");
  ensure_world();
  py::gil_scoped_release no_gil;
  return ShardedTensor::from_full(full, wanted, {same_on_all_ranks});
}

ShardedTensor from_local_shards(
    py::handle shards, py::handle size, py::handle spec) {
  constexpr const char* kCaller = "ShardedTensor.from_local_shards";
  const auto wanted = as_spec(spec, kCaller);
  ensure_world();
  const auto sizes = as_sizes(size, kCaller);
  if (THPVariable_Check(shards.ptr())) {
    return ShardedTensor::from_local_shards(
        THPVariable_Unpack(shards.ptr()), sizes, wanted);
  }
  return ShardedTensor::from_local_shards(
      as_tensors(shards, kCaller, "shards"), sizes, wanted);
}

py::object size_of(const ShardedTensor& tensor, py::handle dim) {
  if (!dim.is_none()) {
    return py::int_(tensor.size(as_int(dim, "ShardedTensor.size", "dim")));
  }
  return py::module_::import("torch").attr("Size")(to_python(tensor.size()));
}

py::object grad_of(const ShardedTensor& tensor) {
  auto grad = tensor.grad();
  return grad.defined() ? py::cast(std::move(grad)) : py::none();
}

py::object spec_of(const ShardedTensor& tensor) {
  const auto* spec = tensor.sharding_spec();
  return spec == nullptr ? py::none() : py::cast(*spec);
}

std::string text_of(const ShardedTensor& tensor) {
  std::ostringstream out;
  out << tensor;
  return out.str();
}

void bind_specs_and_shards(py::module_& m) {
  py::class_<ShardPlacement>(
      m, "ShardPlacement", "The rank and the kind of device of a shard.")
      .def(py::init(&as_shard_placement), py::arg("placement"))
      .def_readonly("rank", &ShardPlacement::rank)
      .def_readonly("device_type", &ShardPlacement::device_type)
      .def(
          "__eq__",
          [](const ShardPlacement& a, py::handle b) {
            return py::isinstance<ShardPlacement>(b) &&
                   a == b.cast<const ShardPlacement&>();
          })
      .def("__repr__", &ShardPlacement::str)
      .def("__reduce__", [](py::object self) {
        return py::make_tuple(
            py::type::of(self),
            py::make_tuple(self.cast<const ShardPlacement&>().str()));
      });

  py::class_<ChunkShardingSpec>(
      m,
      "ChunkShardingSpec",
      "Cuts dimension `dim` as torch.chunk does; chunk i goes to "
      "placements[i], a text like 'rank:0/cpu' or a rank.")
      .def(py::init(&make_spec), py::arg("dim"), py::arg("placements"))
      .def_readonly("dim", &ChunkShardingSpec::dim)
      .def_readonly("placements", &ChunkShardingSpec::placements)
      .def(
          "__eq__",
          [](const ChunkShardingSpec& a, py::handle b) {
            return py::isinstance<ChunkShardingSpec>(b) &&
                   a == b.cast<const ChunkShardingSpec&>();
          })
      .def("__repr__", &ChunkShardingSpec::str)
      .def("__reduce__", [](py::object self) {
        const auto& spec = self.cast<const ChunkShardingSpec&>();
        py::list placements;
        for (const auto& placement : spec.placements) {
          placements.append(placement.str());
        }
        return py::make_tuple(
            py::type::of(self), py::make_tuple(spec.dim, placements));
      });

  py::class_<LocalShard>(m, "LocalShard", "A shard that lives in this process.")
      .def_readonly("tensor", &LocalShard::tensor)
      .def_property_readonly(
          "offsets",
          [](const LocalShard& s) { return to_python(SizesRef(s.offsets)); })
      .def_readonly("rank", &LocalShard::rank);
}

void bind_tensor(py::module_& m) {
  py::class_<ShardedTensor>(
      m,
      "ShardedTensor",
      "A view of a distributed tensor as one local shard a rank; both share "
      "their memory.")
      .def(
          py::init([](const at::Tensor& t) { return ShardedTensor(t); }),
          py::arg("dtensor"))
      .def_static(
          "from_full",
          &from_full,
          py::arg("tensor"),
          py::arg("spec"),
          py::kw_only(),
          py::arg("same_on_all_ranks") = false,
          "Cuts a plain tensor up. The value is the lowest rank's, which "
          "scatters it, unless it is known to be the same on all ranks. Keeps "
          "requires_grad.")
      .def_static(
          "from_local_shards",
          &from_local_shards,
          py::arg("shards"),
          py::arg("size"),
          py::arg("spec"),
          "Of shards that exist already, without a copy: this rank's, or a "
          "list with one for each rank that lives here, in ascending order. "
          "`size` is that of the whole. Nothing is sent.")
      .def(
          "size",
          &size_of,
          py::arg("dim") = py::none(),
          "The size of the whole, or of one of its dimensions.")
      .def(
          "sharding_spec",
          &spec_of,
          "The ChunkShardingSpec; None for other layouts.")
      .def(
          "local_shards",
          &ShardedTensor::local_shards,
          "The shards that live here, in ascending order of rank.")
      .def(
          "local_tensor",
          &ShardedTensor::local_tensor,
          "The tensor of the only shard that lives here.")
      .def(
          "dtensor",
          [](const ShardedTensor& t) -> at::Tensor { return t.dtensor(); },
          "The distributed tensor that this is a view of; what optimizers "
          "take.")
      .def_property_readonly(
          "grad", &grad_of, "The gradient of dtensor(), laid out likewise.")
      .def_property_readonly(
          "requires_grad",
          [](const ShardedTensor& t) { return t.dtensor().requires_grad(); })
      .def(
          "requires_grad_",
          [](py::object self, bool requires_grad) {
            self.cast<ShardedTensor&>().requires_grad_(requires_grad);
            return self;
          },
          py::arg("requires_grad") = true,
          "Whether gradients are wanted; returns this.")
      .def("__repr__", &text_of)
      .def("__reduce__", [](py::object self) {
        const at::Tensor tensor = self.cast<const ShardedTensor&>().dtensor();
        return py::make_tuple(py::type::of(self), py::make_tuple(tensor));
      });
}

}  // namespace

void bind_sharded(py::module_& m) {
  bind_specs_and_shards(m);
  bind_tensor(m);
  bind_sharded_lookups(m);
}

}  // namespace tessera::python
