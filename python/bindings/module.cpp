// The module tessera._C: the C++ API as Python objects. What Python's
// conventions ask for on top of it is in the package.
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include "convert.h"
#include "tessera/language.h"

namespace tessera::python {

// The error that is set, in Python's words.
void spell_error() {
  py::error_already_set error;
  const auto text = py::str(error.value()).cast<std::string>();
  const auto spelt = spell(text);
  if (spelt == text) {
    error.restore();
  } else {
    PyErr_SetString(error.type().ptr(), spelt.c_str());
  }
}

// See interpreter_lock.cpp.
void release_lock_while_waiting();

}  // namespace tessera::python

namespace {

// The library's errors as the Python types that torch gives its own.
void translate_errors(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(error);
    tessera::python::spell_error();
  } catch (const pybind11::cast_error&) {
    // Arguments are looked at before they are cast; this one was forgotten.
    PyErr_SetString(PyExc_TypeError, "an argument is of a wrong type");
  }
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  namespace ts = tessera::python;
  pybind11::register_local_exception_translator(translate_errors);
  tessera::speak_python();
  ts::bind_placements(m);
  ts::bind_meshes(m);
  ts::bind_worlds(m);
  ts::bind_specs(m);
  ts::bind_tensors(m);
  ts::bind_factories(m);
  ts::bind_rules(m);
  ts::bind_debugging(m);
  ts::bind_embedding(m);
  ts::bind_sharded(m);
  ts::bind_checkpoint(m);
  ts::bind_attributes(m);
  ts::bind_made_objects(m);
  ts::bind_arguments(m);
  ts::release_lock_while_waiting();
}
