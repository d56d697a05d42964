// Factories: each rank allocates its shard and nothing is sent.
#include <torch/csrc/utils/pybind.h>

#include "convert.h"
#include "tessera/distribute.h"

namespace tessera::python {

namespace {

using Factory = DTensor (*)(
    SizesRef, const DeviceMesh&, PlacementsRef, const at::TensorOptions&);

at::TensorOptions options_of(
    std::optional<at::ScalarType> dtype, bool requires_grad) {
  return at::TensorOptions().dtype(dtype).requires_grad(requires_grad);
}

at::Scalar as_scalar(py::handle value) {
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) {
    return as_int(value, "full", "fill_value");
  }
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  TORCH_CHECK_TYPE(
      PyComplex_Check(value.ptr()),
      "[full] expected a number as fill_value, got ",
      describe(value));
  return value.cast<c10::complex<double>>();
}

void bind_factory(py::module_& m, const char* name, Factory factory) {
  m.def(
      name,
      [name, factory](
          py::handle size,
          py::handle device_mesh,
          py::handle placements,
          std::optional<at::ScalarType> dtype,
          bool requires_grad) -> at::Tensor {
        const auto sizes = as_sizes(size, name);
        const auto mesh = as_mesh(device_mesh, name);
        const auto wanted = as_placements(
            placements, mesh, static_cast<int64_t>(sizes.size()), name);
        py::gil_scoped_release no_gil;
        return factory(sizes, mesh, wanted, options_of(dtype, requires_grad));
      },
      py::arg("size"),
      py::arg("device_mesh"),
      py::arg("placements"),
      py::arg("dtype"),
      py::arg("requires_grad"));
}

}  // namespace

void bind_factories(py::module_& m) {
  bind_factory(m, "empty", &empty);
  bind_factory(m, "zeros", &zeros);
  bind_factory(m, "ones", &ones);
  bind_factory(m, "rand", &rand);
  bind_factory(m, "randn", &randn);
  m.def(
      "full",
      [](py::handle size,
         py::handle fill_value,
         py::handle device_mesh,
         py::handle placements,
         std::optional<at::ScalarType> dtype,
         bool requires_grad) -> at::Tensor {
        const auto value = as_scalar(fill_value);
        const auto sizes = as_sizes(size, "full");
        const auto mesh = as_mesh(device_mesh, "full");
        const auto wanted = as_placements(
            placements, mesh, static_cast<int64_t>(sizes.size()), "full");
        py::gil_scoped_release no_gil;
        return full(
            sizes, value, mesh, wanted, options_of(dtype, requires_grad));
      },
      py::arg("size"),
      py::arg("fill_value"),
      py::arg("device_mesh"),
      py::arg("placements"),
      py::arg("dtype"),
      py::arg("requires_grad"));
  m.def(
      "manual_seed",
      &manual_seed,
      py::arg("seed"),
      "Seeds torch's default generators, from which distributed tensors draw; "
      "the same as torch.manual_seed. Every rank must use the same seed.");
}

}  // namespace tessera::python
