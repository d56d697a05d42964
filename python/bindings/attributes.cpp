// Attributes that distributed tensors have and plain ones have not. Results of
// torch's operations are objects of torch.Tensor, distributed or not, so the
// attributes sit on that class; for a plain tensor they raise AttributeError,
// as if they were not there, and hasattr() is False.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "convert.h"
#include "tessera/dtensor.h"

namespace tessera::python {

namespace {

struct Attribute {
  PyObject_HEAD PyObject* function;
  PyObject* name;
  bool is_property;
};

void deallocate(PyObject* self) {
  auto* attribute = reinterpret_cast<Attribute*>(self);
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(attribute->function);
  Py_XDECREF(attribute->name);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* get(PyObject* self, PyObject* object, PyObject* /*type*/) {
  auto* attribute = reinterpret_cast<Attribute*>(self);
  if (object == nullptr || object == Py_None) {
    // Asked of the class: DTensor.redistribute(tensor, ...) works.
    PyObject* found = attribute->is_property ? self : attribute->function;
    return Py_NewRef(found);
  }
  if (!THPVariable_Check(object) || !is_dtensor(THPVariable_Unpack(object))) {
    return PyErr_Format(
        PyExc_AttributeError,
        "'%s' object has no attribute '%U'",
        Py_TYPE(object)->tp_name,
        attribute->name);
  }
  return attribute->is_property
             ? PyObject_CallOneArg(attribute->function, object)
             : PyMethod_New(attribute->function, object);
}

PyObject* get_doc(PyObject* self, void*) {
  return PyObject_GetAttrString(
      reinterpret_cast<Attribute*>(self)->function, "__doc__");
}

PyGetSetDef getters[] = {
    {"__doc__", get_doc, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_descr_get, reinterpret_cast<void*>(get)},
    {Py_tp_getset, getters},
    {0, nullptr}};

PyType_Spec type_spec = {
    "tessera._C.TensorAttribute",
    sizeof(Attribute),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    slots};

py::object make(
    const py::object& type,
    const py::function& function,
    const py::str& name,
    bool is_property) {
  auto* of = reinterpret_cast<PyTypeObject*>(type.ptr());
  auto object =
      py::reinterpret_steal<py::object>(of->tp_alloc(of, /*nitems=*/0));
  if (!object) throw py::error_already_set();
  auto* attribute = reinterpret_cast<Attribute*>(object.ptr());
  attribute->function = Py_NewRef(function.ptr());
  attribute->name = Py_NewRef(name.ptr());
  attribute->is_property = is_property;
  return object;
}

}  // namespace

void bind_attributes(py::module_& m) {
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&type_spec));
  if (!type) throw py::error_already_set();
  m.def(
      "tensor_attribute",
      [type](const py::function& function, const py::str& name, bool property) {
        return make(type, function, name, property);
      },
      py::arg("function"),
      py::arg("name"),
      py::arg("is_property") = false,
      "A descriptor that only distributed tensors seem to have.");
}

}  // namespace tessera::python
