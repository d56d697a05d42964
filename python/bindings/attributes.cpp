// Attributes that distributed tensors have and plain ones have not. Results of
// torch's operations are objects of torch.Tensor, distributed or not, so the
// attributes sit on that class; for a plain tensor they raise AttributeError,
// as if they were not there, and hasattr() is False.
// clang-format off: structmember.h needs what Python.h declares.
#include <torch/csrc/python_headers.h>
#include <structmember.h>
// clang-format on
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>

#include "convert.h"
#include "tessera/dtensor.h"

namespace tessera::python {

namespace {

// A body without arguments but the tensor. What is called most has one: the way
// through pybind takes longer than to_local itself.
using Body = PyObject* (*)(const at::Tensor&);

struct Attribute {
  PyObject_HEAD vectorcallfunc call;
  PyObject* function;
  PyObject* name;
  Body body;  // may be null
};

Attribute* attribute_of(PyObject* self) {
  return reinterpret_cast<Attribute*>(self);
}

// A handle on a tensor that Python holds meanwhile. Another reference to a
// tensor of one would be counted in Python too, at twice the cost of to_local.
class Borrowed {
 public:
  // Requires: the tensor is distributed.
  explicit Borrowed(const at::Tensor& tensor)
      : tensor_(Traits::createBorrow(tensor)) {}
  ~Borrowed() { Traits::destroyBorrow(tensor_); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  const DTensor* operator->() const { return &tensor_; }

 private:
  using Traits = c10::MaybeOwnedTraits<at::Tensor>;
  DTensor tensor_;
};

PyObject* local_of(const at::Tensor& tensor) {
  // By hand: HANDLE_TH_ERRORS also gathers warnings, which takes longer.
  try {
    const Borrowed borrowed(tensor);
    return THPVariable_Wrap(borrowed->to_local());
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

Body body_of(const std::string& name) {
  return name == "to_local" || name == "_local_tensor" ? local_of : nullptr;
}

bool is_distributed(PyObject* object) {
  return THPVariable_Check(object) && is_dtensor(THPVariable_Unpack(object));
}

PyObject* no_such_attribute(PyObject* self, PyObject* object) {
  return PyErr_Format(
      PyExc_AttributeError,
      "'%s' object has no attribute '%U'",
      Py_TYPE(object)->tp_name,
      attribute_of(self)->name);
}

void deallocate(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(attribute_of(self)->function);
  Py_XDECREF(attribute_of(self)->name);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* get_doc(PyObject* self, void*) {
  return PyObject_GetAttrString(attribute_of(self)->function, "__doc__");
}

// ---- methods ----

// x.to_local() comes here, without a bound method in between: the interpreter
// takes that way for types with Py_TPFLAGS_METHOD_DESCRIPTOR, and remembers
// what it found for those that are immutable besides.
PyObject* call_method(
    PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  if (PyVectorcall_NARGS(count) == 0) {
    return PyErr_Format(
        PyExc_TypeError, "%U() needs a tensor", attribute_of(self)->name);
  }
  if (!is_distributed(args[0])) return no_such_attribute(self, args[0]);
  if (attribute_of(self)->body != nullptr && names == nullptr &&
      PyVectorcall_NARGS(count) == 1) {
    return attribute_of(self)->body(THPVariable_Unpack(args[0]));
  }
  return PyObject_Vectorcall(attribute_of(self)->function, args, count, names);
}

PyObject* get_method(PyObject* self, PyObject* object, PyObject* /*type*/) {
  if (object == nullptr || object == Py_None) {
    // Asked of the class: DTensor.redistribute(tensor, ...) works.
    return Py_NewRef(attribute_of(self)->function);
  }
  if (!is_distributed(object)) return no_such_attribute(self, object);
  return PyMethod_New(self, object);
}

// ---- properties ----

// What others have put on a plain tensor, or a tensor of a class of theirs,
// under this name.
PyObject* get_of_plain(PyObject* self, PyObject* object) {
  auto dict = py::reinterpret_steal<py::object>(
      PyObject_GenericGetDict(object, nullptr));
  if (!dict) return nullptr;
  PyObject* found =
      PyDict_GetItemWithError(dict.ptr(), attribute_of(self)->name);
  if (found != nullptr) return Py_NewRef(found);
  return PyErr_Occurred() ? nullptr : no_such_attribute(self, object);
}

PyObject* get_property(PyObject* self, PyObject* object, PyObject* /*type*/) {
  if (object == nullptr || object == Py_None) return Py_NewRef(self);
  if (!is_distributed(object)) return get_of_plain(self, object);
  if (attribute_of(self)->body != nullptr) {
    return attribute_of(self)->body(THPVariable_Unpack(object));
  }
  return PyObject_CallOneArg(attribute_of(self)->function, object);
}

int set_property(PyObject* self, PyObject* object, PyObject* value) {
  if (is_distributed(object)) {
    PyErr_Format(
        PyExc_AttributeError,
        "attribute '%U' of a distributed tensor cannot be set: redistribute() "
        "gives it in another layout",
        attribute_of(self)->name);
    return -1;
  }
  auto dict = py::reinterpret_steal<py::object>(
      PyObject_GenericGetDict(object, nullptr));
  if (!dict) return -1;
  if (value != nullptr) {
    return PyDict_SetItem(dict.ptr(), attribute_of(self)->name, value);
  }
  if (PyDict_Contains(dict.ptr(), attribute_of(self)->name) == 0) {
    no_such_attribute(self, object);
    return -1;
  }
  return PyDict_DelItem(dict.ptr(), attribute_of(self)->name);
}

// ---- the types ----

PyGetSetDef getters[] = {
    {"__doc__", get_doc, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef method_members[] = {
    {"__vectorcalloffset__",
     T_PYSSIZET,
     offsetof(Attribute, call),
     READONLY,
     nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot method_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_descr_get, reinterpret_cast<void*>(get_method)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_getset, getters},
    {Py_tp_members, method_members},
    {0, nullptr}};

PyType_Spec method_spec = {
    "tessera._C.TensorMethod",
    sizeof(Attribute),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |
        Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_METHOD_DESCRIPTOR,
    method_slots};

// With a setter, as the properties of torch's own have one: torch.overrides,
// and torch.compile through it, takes hold of both.
PyType_Slot property_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_descr_get, reinterpret_cast<void*>(get_property)},
    {Py_tp_descr_set, reinterpret_cast<void*>(set_property)},
    {Py_tp_getset, getters},
    {0, nullptr}};

PyType_Spec property_spec = {
    "tessera._C.TensorProperty",
    sizeof(Attribute),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    property_slots};

py::object make(
    const py::object& type, const py::function& function, const py::str& name) {
  auto* of = reinterpret_cast<PyTypeObject*>(type.ptr());
  auto object =
      py::reinterpret_steal<py::object>(of->tp_alloc(of, /*nitems=*/0));
  if (!object) throw py::error_already_set();
  auto* attribute = attribute_of(object.ptr());
  attribute->call = call_method;
  attribute->function = Py_NewRef(function.ptr());
  attribute->name = Py_NewRef(name.ptr());
  attribute->body = body_of(name.cast<std::string>());
  return object;
}

void bind_type(
    py::module_& m, const char* maker, PyType_Spec& spec, const char* doc) {
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  m.def(
      maker,
      [type](const py::function& function, const py::str& name) {
        return make(type, function, name);
      },
      py::arg("function"),
      py::arg("name"),
      doc);
}

}  // namespace

void bind_attributes(py::module_& m) {
  bind_type(
      m,
      "tensor_method",
      method_spec,
      "A method that only distributed tensors seem to have.");
  bind_type(
      m,
      "tensor_property",
      property_spec,
      "A property that only distributed tensors seem to have.");
}

}  // namespace tessera::python
