// Objects of the bound classes that nobody has made properly. `copy` and
// unpicklers make objects by __new__ alone, and ask objects how to make them
// again: pybind would hand out memory that is not initialised for the first,
// and end the process at the second.
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "convert.h"

namespace tessera::python {

namespace {

// What pybind calls for the value of an object that has none.
void* refuse_value(size_t) {
  throw py::type_error(
      "expected an object that its class has made, got one whose __init__ was "
      "not called");
}

void refuse_copies(py::handle type) {
  const auto name = type.attr("__name__").cast<std::string>();
  py::setattr(
      type,
      "__reduce__",
      py::cpp_function(
          [name](py::handle) -> py::object {
            throw py::type_error(
                "[" + name + "] cannot be copied, pickled or saved");
          },
          py::name("__reduce__"),
          py::is_method(type)));
}

}  // namespace

void bind_made_objects(py::module_& m) {
  const auto plain =
      py::module_::import("builtins").attr("object").attr("__reduce__");
  for (const auto& [key, value] : m.attr("__dict__").cast<py::dict>()) {
    if (!PyType_Check(value.ptr())) continue;
    auto* const info =
        py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(value.ptr()));
    if (info == nullptr) continue;
    info->operator_new = &refuse_value;
    if (value.attr("__reduce__").is(plain)) refuse_copies(value);
  }
}

}  // namespace tessera::python
