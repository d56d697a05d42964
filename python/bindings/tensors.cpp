// Distributed tensors: asking them, making and unmaking them.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <sstream>

#include "convert.h"
#include "tessera/distribute.h"
#include "tessera/dtensor.h"

namespace tessera::python {

namespace {

std::optional<Sizes> optional_sizes(py::handle sizes, const char* caller) {
  if (sizes.is_none()) return std::nullopt;
  return as_sizes(sizes, caller);
}

// One tensor, or a list with one for each rank that lives here.
at::Tensor from_local(
    py::handle local,
    py::handle device_mesh,
    py::handle placements,
    bool run_check,
    py::handle shape,
    py::handle stride,
    bool uneven) {
  constexpr const char* kCaller = "from_local";
  const auto mesh = as_mesh(device_mesh, kCaller);
  FromLocalOptions options;
  options.run_check = run_check;
  options.shape = optional_sizes(shape, kCaller);
  options.stride = optional_sizes(stride, kCaller);
  options.uneven = uneven;
  if (THPVariable_Check(local.ptr())) {
    const at::Tensor& tensor = THPVariable_Unpack(local.ptr());
    const auto wanted = as_placements(placements, mesh, tensor.dim(), kCaller);
    py::gil_scoped_release no_gil;
    return DTensor::from_local(tensor, mesh, wanted, options);
  }
  const auto locals = as_tensors(local, kCaller, "local_tensor");
  const int64_t ndim = locals.empty() ? 0 : locals[0].dim();
  const auto wanted = as_placements(placements, mesh, ndim, kCaller);
  py::gil_scoped_release no_gil;
  return DTensor::from_local(locals, mesh, wanted, options);
}

// A result of an op is refused for what it is, whatever the placements.
Placements wanted_placements(
    const at::Tensor& tensor,
    const DeviceMesh& mesh,
    py::handle placements,
    const char* caller) {
  return tensor.is_leaf() || is_dtensor(tensor)
             ? as_placements(placements, mesh, tensor.dim(), caller)
             : Placements();
}

at::Tensor distribute(
    const at::Tensor& tensor,
    py::handle device_mesh,
    py::handle placements,
    bool same_on_all_ranks) {
  const auto mesh = as_mesh(device_mesh, "distribute_tensor");
  const auto wanted =
      wanted_placements(tensor, mesh, placements, "distribute_tensor");
  py::gil_scoped_release no_gil;
  return distribute_tensor(tensor, mesh, wanted, {same_on_all_ranks});
}

void distribute_in_place(
    const at::Tensor& tensor,
    py::handle device_mesh,
    py::handle placements,
    bool same_on_all_ranks) {
  const auto mesh = as_mesh(device_mesh, "distribute_");
  const auto wanted =
      wanted_placements(tensor, mesh, placements, "distribute_");
  py::gil_scoped_release no_gil;
  distribute_(tensor, mesh, wanted, {same_on_all_ranks});
}

at::Tensor redistribute(
    const at::Tensor& tensor,
    py::handle device_mesh,
    py::handle placements,
    bool /*async_op*/) {
  const DTensor distributed(tensor);
  auto wanted = as_optional_placements(placements, "redistribute");
  TORCH_CHECK(
      wanted.has_value(),
      "[redistribute] placements is needed to redistribute");
  if (device_mesh.is_none()) {
    py::gil_scoped_release no_gil;
    return distributed.redistribute(*wanted);
  }
  const auto mesh = as_mesh(device_mesh, "redistribute");
  py::gil_scoped_release no_gil;
  return distributed.redistribute(mesh, *wanted);
}

at::Tensor to_local(const at::Tensor& tensor, py::handle grad_placements) {
  auto wanted = as_optional_placements(grad_placements, "to_local");
  return DTensor(tensor).to_local(std::move(wanted));
}

std::vector<at::Tensor> shards(
    const at::Tensor& tensor, py::handle grad_placements) {
  auto wanted = as_optional_placements(grad_placements, "shards");
  return DTensor(tensor).shards(std::move(wanted));
}

at::Tensor full_tensor(const at::Tensor& tensor, py::handle grad_placements) {
  auto wanted = as_optional_placements(grad_placements, "full_tensor");
  py::gil_scoped_release no_gil;
  return DTensor(tensor).full_tensor(std::move(wanted));
}

py::object local_range(
    const at::Tensor& tensor, int64_t dim, std::optional<int64_t> rank) {
  const DTensor distributed(tensor);
  const auto found = rank.has_value() ? distributed.local_range(dim, *rank)
                                      : distributed.local_range(dim);
  const auto range = py::module_::import("builtins").attr("range");
  return range(found.begin, found.begin + found.size);
}

std::string layout_text(const at::Tensor& tensor) {
  std::ostringstream out;
  out << DTensor(tensor).spec()->str();
  return out.str();
}

}  // namespace

void bind_tensors(py::module_& m) {
  m.def(
      "is_dtensor",
      [](py::handle object) {
        return THPVariable_Check(object.ptr()) &&
               is_dtensor(THPVariable_Unpack(object.ptr()));
      },
      py::arg("object"),
      "Whether an object is a distributed tensor.");
  m.def(
      "from_local",
      &from_local,
      py::arg("local_tensor"),
      py::arg("device_mesh") = py::none(),
      py::arg("placements") = py::none(),
      py::kw_only(),
      py::arg("run_check") = false,
      py::arg("shape") = py::none(),
      py::arg("stride") = py::none(),
      py::arg("uneven") = false,
      "A distributed tensor of this rank's shard; replicated without "
      "placements. Differentiable. In a simulated world local_tensor is one "
      "tensor, which every rank holds, or a list with one for each rank in the "
      "order of device_mesh.ranks. With "
      "run_check the ranks compare the shapes and replicas become the first "
      "rank's; without, nothing is sent. Shards that are torch.chunk's parts "
      "of an uneven whole need its shape and stride. With uneven=True shards "
      "may have any size along the sharded dimensions, as in the last batch of "
      "an epoch: the ranks share the sizes, and the few rows that make the "
      "shards torch.chunk's move.");
  m.def(
      "distribute_tensor",
      &distribute,
      py::arg("tensor"),
      py::arg("device_mesh"),
      py::arg("placements"),
      py::arg("same_on_all_ranks"));
  m.def(
      "distribute_",
      &distribute_in_place,
      py::arg("tensor"),
      py::arg("device_mesh"),
      py::arg("placements"),
      py::arg("same_on_all_ranks"));
  m.def(
      "redistribute",
      &redistribute,
      py::arg("self"),
      py::arg("device_mesh") = py::none(),
      py::arg("placements") = py::none(),
      py::kw_only(),
      py::arg("async_op") = false,
      "The same value in another layout. Differentiable; communicates as "
      "needed. It is done when it returns: async_op changes nothing.");
  m.def(
      "to_local",
      &to_local,
      py::arg("self"),
      py::kw_only(),
      py::arg("grad_placements") = py::none(),
      "This rank's shard. Differentiable; does not communicate.");
  m.def(
      "full_tensor",
      &full_tensor,
      py::arg("self"),
      py::kw_only(),
      py::arg("grad_placements") = py::none(),
      "The whole value, as a plain tensor. Differentiable.");
  m.def(
      "shards",
      &shards,
      py::arg("self"),
      py::kw_only(),
      py::arg("grad_placements") = py::none(),
      "The shards that live in this process, one a rank. Differentiable.");
  m.def(
      "shard",
      [](const at::Tensor& tensor, int64_t rank) {
        return DTensor(tensor).shard(rank);
      },
      py::arg("self"),
      py::arg("rank"),
      "The shard of one rank that lives in this process, detached.");
  m.def(
      "local_range",
      &local_range,
      py::arg("self"),
      py::arg("dim") = 0,
      py::arg("rank") = py::none(),
      "The indices of a dimension that are in the shard of a rank, by default "
      "this process's: a range. Does not communicate.");
  m.def(
      "owners",
      [](const at::Tensor& tensor, int64_t index, int64_t dim) {
        return DTensor(tensor).owners(dim, index);
      },
      py::arg("self"),
      py::arg("index"),
      py::arg("dim") = 0,
      "The ranks whose shards hold an index of a dimension, ascending. Does "
      "not communicate.");
  m.def(
      "device_mesh",
      [](const at::Tensor& tensor) { return DTensor(tensor).mesh(); },
      "The mesh over which the tensor lies.");
  m.def(
      "placements",
      [](const at::Tensor& tensor) {
        return to_python(DTensor(tensor).placements());
      },
      "How the tensor lies, one placement for each mesh dimension.");
  m.def(
      "spec",
      [](const at::Tensor& tensor) {
        return to_python(DTensor(tensor).spec());
      },
      "The layout: mesh, placements, shape, strides and dtype.");
  m.def("layout_text", &layout_text, py::arg("tensor"));
  m.def("keep_grad_layout", &keep_grad_layout, py::arg("leaf"));
  m.def(
      "reading_sends",
      [](const at::Tensor& tensor) { return DTensor(tensor).reading_sends(); },
      py::arg("tensor"),
      "Whether the next read of this tensor sends: True for a view of a "
      "sharded "
      "dimension that had to be copied, if it was not read before or its base "
      "has been written since.");
}

}  // namespace tessera::python
