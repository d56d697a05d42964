// Wrong arguments in words. pybind answers them with the signatures of all
// overloads and a dump of what was given; here they are refused as the library
// refuses everything else. Its dispatcher stays as it is: the C function of
// each bound function is exchanged for one that calls it and looks at its
// error.
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <unordered_map>

#include "convert.h"

namespace tessera::python {

namespace {

using Dispatcher = PyObject* (*)(PyObject*,
                                 PyObject* const*,
                                 Py_ssize_t,
                                 PyObject*);
using TupleDispatcher = PyObject* (*)(PyObject*, PyObject*, PyObject*);

// pybind's own, one for all functions of the module. Older versions pass a
// tuple and a dict.
Dispatcher dispatcher = nullptr;
TupleDispatcher tuple_dispatcher = nullptr;

// What users call a function, by the object that stands for it.
std::unordered_map<PyObject*, std::string>& names() {
  static auto* const known = new std::unordered_map<PyObject*, std::string>;
  return *known;
}

// If pybind has found no overload, says so in one sentence.
void explain_error(
    PyObject* self, const py::object& args, const py::object& kwargs) {
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) return;
  py::error_already_set error;
  const auto text = py::str(error.value()).cast<std::string>();
  if (text.find("incompatible function arguments") == std::string::npos &&
      text.find("incompatible constructor arguments") == std::string::npos) {
    error.restore();
    return;
  }
  try {
    const auto sentence =
        py::module_::import("tessera._arguments")
            .attr("sentence")(names()[self], text, args, kwargs)
            .cast<std::string>();
    PyErr_SetString(PyExc_TypeError, sentence.c_str());
  } catch (py::error_already_set& failed) {
    failed.restore();
  }
}

PyObject* call(
    PyObject* self,
    PyObject* const* args,
    Py_ssize_t count,
    PyObject* keywords) {
  PyObject* result = dispatcher(self, args, count, keywords);
  if (result == nullptr) {
    const Py_ssize_t given = PyVectorcall_NARGS(count);
    py::tuple positional(given);
    for (Py_ssize_t i = 0; i < given; ++i) {
      positional[i] = py::reinterpret_borrow<py::object>(args[i]);
    }
    py::dict named;
    if (keywords != nullptr) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keywords); ++i) {
        named[PyTuple_GET_ITEM(keywords, i)] =
            py::reinterpret_borrow<py::object>(args[given + i]);
      }
    }
    explain_error(self, positional, named);
  }
  return result;
}

PyObject* call_with_tuple(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* result = tuple_dispatcher(self, args, kwargs);
  if (result == nullptr) {
    explain_error(
        self,
        py::reinterpret_borrow<py::object>(args),
        kwargs == nullptr ? py::object(py::dict())
                          : py::reinterpret_borrow<py::object>(kwargs));
  }
  return result;
}

void watch(PyObject* function, const std::string& name) {
  auto* object = reinterpret_cast<PyCFunctionObject*>(function);
  PyMethodDef* method = object->m_ml;
  if (method->ml_flags == (METH_FASTCALL | METH_KEYWORDS)) {
    auto* const found = reinterpret_cast<Dispatcher>(
        reinterpret_cast<void (*)()>(method->ml_meth));
    if (found == call) return;
    dispatcher = found;
    method->ml_meth =
        reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call));
  } else if (method->ml_flags == (METH_VARARGS | METH_KEYWORDS)) {
    auto* const found = reinterpret_cast<TupleDispatcher>(
        reinterpret_cast<void (*)()>(method->ml_meth));
    if (found == call_with_tuple) return;
    tuple_dispatcher = found;
    method->ml_meth = reinterpret_cast<PyCFunction>(
        reinterpret_cast<void (*)()>(&call_with_tuple));
  }
  names()[object->m_self] = name;
}

// The C function behind what a module or a class has under a name, if any.
py::object c_function_of(py::handle value) {
  if (PyInstanceMethod_Check(value.ptr())) {
    value = PyInstanceMethod_GET_FUNCTION(value.ptr());
  }
  auto found = py::reinterpret_borrow<py::object>(value);
  if (Py_IS_TYPE(found.ptr(), &PyStaticMethod_Type)) {
    found = found.attr("__func__");
  }
  return PyCFunction_Check(found.ptr()) ? found : py::object();
}

}  // namespace

std::string describe(py::handle value) {
  return py::module_::import("tessera._arguments")
      .attr("describe")(value)
      .cast<std::string>();
}

bool is_sequence(py::handle value) {
  PyObject* object = value.ptr();
  if (PySequence_Check(object) == 0 || PyUnicode_Check(object) != 0 ||
      PyBytes_Check(object) != 0) {
    return false;
  }
  // A mesh has __getitem__, a tensor without dimensions __len__ as well.
  const bool sized = PyObject_Size(object) >= 0;
  if (!sized) PyErr_Clear();
  return sized;
}

int64_t as_int(py::handle value, const char* caller, const char* argument) {
  int overflow = 0;
  long long result = 0;
  if (PyIndex_Check(value.ptr()) != 0) {
    const auto index =
        py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (index) {
      result = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
      if (overflow == 0) return result;
    }
    PyErr_Clear();
  }
  TORCH_CHECK_TYPE(
      false,
      "[",
      caller,
      "] expected an integer as ",
      argument,
      ", got ",
      describe(value),
      overflow == 0 ? "" : ", which does not fit in 64 bits");
}

std::vector<at::Tensor> as_tensors(
    py::handle tensors, const char* caller, const char* argument) {
  std::vector<at::Tensor> result;
  if (py::isinstance<py::list>(tensors) || py::isinstance<py::tuple>(tensors)) {
    for (const auto& tensor : tensors.cast<py::sequence>()) {
      TORCH_CHECK_TYPE(
          THPVariable_Check(tensor.ptr()),
          "[",
          caller,
          "] expected a list of tensors as ",
          argument,
          ", but element ",
          result.size(),
          " is ",
          describe(tensor));
      result.push_back(THPVariable_Unpack(tensor.ptr()));
    }
    return result;
  }
  TORCH_CHECK_TYPE(
      false,
      "[",
      caller,
      "] expected a tensor, or a list of tensors, one for each rank that lives "
      "here, as ",
      argument,
      ", got ",
      describe(tensors));
}

void bind_arguments(py::module_& m) {
  for (const auto& [key, value] : m.attr("__dict__").cast<py::dict>()) {
    const auto name = py::str(key).cast<std::string>();
    if (const auto function = c_function_of(value)) {
      watch(function.ptr(), name);
    }
    if (!PyType_Check(value.ptr())) continue;
    for (const auto& item : py::list(value.attr("__dict__").attr("items")())) {
      const auto pair = item.cast<py::tuple>();
      if (const auto function = c_function_of(pair[1])) {
        const auto method = py::str(pair[0]).cast<std::string>();
        watch(
            function.ptr(), method == "__init__" ? name : name + "." + method);
      }
    }
  }
}

}  // namespace tessera::python
