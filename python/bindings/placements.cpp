// Placements. C++ has one closed class; Python has a class a kind, so that
// isinstance(p, Shard) works as users are used to.
#include <torch/csrc/utils/pybind.h>

#include "convert.h"

namespace tessera::python {

namespace {

struct PyReplicate : Placement {
  using Placement::Placement;
  explicit PyReplicate(const Placement& p) : Placement(p) {}
};
struct PyShard : Placement {
  explicit PyShard(const Placement& p) : Placement(p) {}
};
struct PyPartial : Placement {
  explicit PyPartial(const Placement& p) : Placement(p) {}
};
struct PyMaskPartial : PyPartial {
  using PyPartial::PyPartial;
};

std::string reduce_op(const Placement& p) {
  return std::string(to_string(p.reduce_op()));
}

// What torch prints: Shard(dim=0), Replicate(), Partial(sum).
std::string repr(const Placement& p) {
  switch (p.kind()) {
    case Placement::Kind::Replicate:
      return "Replicate()";
    case Placement::Kind::Shard:
      return "Shard(dim=" + std::to_string(p.dim()) + ")";
    case Placement::Kind::Partial:
      return "Partial(" + reduce_op(p) + ")";
    case Placement::Kind::MaskPartial:
      return p.repr();
  }
  return p.repr();
}

// torch's placements, by class and by what they say of themselves. Others of
// its classes (strided shards) mean layouts that we do not have.
std::optional<Placement> from_torch(py::handle p) {
  const auto type = py::type::of(p);
  if (py::str(type.attr("__module__")).cast<std::string>() !=
      "torch.distributed.tensor.placement_types") {
    return std::nullopt;
  }
  const auto name = py::str(type.attr("__name__")).cast<std::string>();
  if (name == "Replicate") return Replicate();
  if (name == "Shard") return Shard(p.attr("dim").cast<int64_t>());
  if (name == "Partial") {
    return Partial(py::str(p.attr("reduce_op")).cast<std::string>());
  }
  return std::nullopt;
}

}  // namespace

Placement as_placement(py::handle placement, const char* caller) {
  if (py::isinstance<Placement>(placement)) {
    return placement.cast<const Placement&>();
  }
  auto converted = from_torch(placement);
  TORCH_CHECK_TYPE(
      converted.has_value(),
      "[",
      caller,
      "] expected placements such as Shard(0), Replicate() or Partial(), got ",
      describe(placement));
  return *converted;
}

std::optional<Placements> as_optional_placements(
    py::handle placements, const char* caller) {
  if (placements.is_none()) return std::nullopt;
  TORCH_CHECK_TYPE(
      is_sequence(placements),
      "[",
      caller,
      "] expected a list of placements, one for each mesh dimension, got ",
      describe(placements));
  Placements result;
  for (const auto& p : placements.cast<py::sequence>()) {
    result.push_back(as_placement(p, caller));
  }
  return result;
}

Placements as_placements(
    py::handle placements,
    const DeviceMesh& mesh,
    int64_t ndim,
    const char* caller) {
  auto given = as_optional_placements(placements, caller);
  if (!given) return {};
  // C++ reads an empty list as "replicated"; in Python it is a wrong length.
  if (given->empty()) return normalize_placements({}, mesh, ndim, caller);
  return std::move(*given);
}

py::object to_python(const Placement& p) {
  switch (p.kind()) {
    case Placement::Kind::Replicate:
      return py::cast(PyReplicate(p));
    case Placement::Kind::Shard:
      return py::cast(PyShard(p));
    case Placement::Kind::Partial:
      return py::cast(PyPartial(p));
    case Placement::Kind::MaskPartial:
      return py::cast(PyMaskPartial(p));
  }
  return py::none();
}

py::tuple to_python(PlacementsRef placements) {
  py::tuple result(placements.size());
  for (size_t i = 0; i < placements.size(); ++i) {
    result[i] = to_python(placements[i]);
  }
  return result;
}

void bind_placements(py::module_& m) {
  py::class_<Placement>(
      m,
      "Placement",
      "How a tensor lies over one dimension of a mesh. Immutable.")
      .def(
          "is_replicate",
          &Placement::is_replicate,
          "Whether every rank holds the whole.")
      .def(
          "is_shard",
          [](const Placement& p, std::optional<int64_t> dim) {
            return dim ? p.is_shard(*dim) : p.is_shard();
          },
          py::arg("dim") = py::none(),
          "Whether a tensor dimension (`dim`, or any) is cut.")
      .def(
          "is_partial",
          [](const Placement& p, std::optional<std::string> op) {
            return p.is_partial() && (!op || reduce_op(p) == *op);
          },
          py::arg("reduce_op") = py::none(),
          "Whether a reduction (`reduce_op`, or any) is pending.")
      .def("__str__", &Placement::str)
      .def("__repr__", &repr)
      .def("__hash__", [](const Placement& p) { return hash_value(p); })
      .def("__eq__", [](const Placement& a, py::handle b) {
        return py::isinstance<Placement>(b) && a == b.cast<const Placement&>();
      });

  py::class_<PyReplicate, Placement>(
      m, "Replicate", "Every rank holds the whole tensor.")
      .def(py::init<>())
      .def("__reduce__", [](py::object self) {
        return py::make_tuple(py::type::of(self), py::tuple(0));
      });

  py::class_<PyShard, Placement>(
      m,
      "Shard",
      "Tensor dimension `dim` is cut in chunks, as torch.chunk cuts it.")
      .def(
          py::init([](int64_t dim) { return PyShard(Shard(dim)); }),
          py::arg("dim"))
      .def_property_readonly("dim", &Placement::dim)
      .def("__reduce__", [](py::object self) {
        return py::make_tuple(
            py::type::of(self), py::make_tuple(self.attr("dim")));
      });

  py::class_<PyPartial, Placement>(
      m,
      "Partial",
      "Each rank holds a term of a reduction: sum, avg, product, min or max.")
      .def(
          py::init(
              [](const std::string& op) { return PyPartial(Partial(op)); }),
          py::arg("reduce_op") = "sum")
      .def_property_readonly("reduce_op", &reduce_op)
      .def("__reduce__", [](py::object self) {
        return py::make_tuple(
            py::type::of(self), py::make_tuple(self.attr("reduce_op")));
      });

  py::class_<PyMaskPartial, PyPartial>(
      m,
      "MaskPartial",
      "What a lookup in a table cut along `offset_dim` gives: a pending sum "
      "whose terms are zero for the rows of other ranks.")
      .def(
          py::init([](const std::vector<int64_t>& shape, int64_t dim) {
            return PyMaskPartial(MaskPartial(shape, dim));
          }),
          py::kw_only(),
          py::arg("offset_shape"),
          py::arg("offset_dim") = 0)
      .def_property_readonly(
          "offset_shape",
          [](const Placement& p) { return to_python(p.offset_shape()); })
      .def_property_readonly("offset_dim", &Placement::offset_dim)
      .def("__reduce__", [](py::object self) {
        return py::make_tuple(
            py::module_::import("tessera.placement_types")
                .attr("_rebuild_mask_partial"),
            py::make_tuple(self.attr("offset_shape"), self.attr("offset_dim")));
      });
}

}  // namespace tessera::python
