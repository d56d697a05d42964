// The layout of a tensor as Python sees it (DTensor._spec).
#include <torch/csrc/Dtype.h>
#include <torch/csrc/utils/pybind.h>

#include "convert.h"

namespace tessera::python {

namespace {

// Spec is a value that is shared; Python holds the pointer.
struct PySpec {
  SpecPtr spec;
};

}  // namespace

void bind_specs(py::module_& m) {
  py::class_<PySpec>(
      m,
      "DTensorSpec",
      "Mesh, placements, global shape, strides and dtype of a tensor.")
      .def_property_readonly(
          "mesh", [](const PySpec& s) { return s.spec->mesh; })
      .def_property_readonly(
          "device_mesh", [](const PySpec& s) { return s.spec->mesh; })
      .def_property_readonly(
          "placements",
          [](const PySpec& s) {
            return to_python(PlacementsRef(s.spec->placements));
          })
      .def_property_readonly(
          "shape",
          [](const PySpec& s) { return to_python(SizesRef(s.spec->sizes)); })
      .def_property_readonly(
          "stride",
          [](const PySpec& s) { return to_python(SizesRef(s.spec->strides)); })
      .def_property_readonly(
          "ndim", [](const PySpec& s) { return s.spec->dim(); })
      .def_property_readonly(
          "dtype", [](const PySpec& s) { return s.spec->dtype; })
      .def(
          "__eq__",
          [](const PySpec& a, py::handle b) {
            return py::isinstance<PySpec>(b) &&
                   a.spec == b.cast<const PySpec&>().spec;
          })
      .def("__hash__", [](const PySpec& s) { return s.spec->hash; })
      .def("__repr__", [](const PySpec& s) { return s.spec->str(); });
}

py::object to_python(const SpecPtr& spec) { return py::cast(PySpec{spec}); }

}  // namespace tessera::python
