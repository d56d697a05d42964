// Counting communication, drawing and explaining layouts, and the guard that
// takes plain tensors as replicated: scopes of C++ as context managers.
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>

#include "convert.h"
#include "scope.h"
#include "tessera/debug.h"
#include "tessera/dtensor.h"
#include "tessera/scopes.h"

namespace tessera::python {

namespace {

// Counts while it is entered; what was counted stays when it is left.
class PyCommDebugMode {
 public:
  void enter() {
    TORCH_CHECK(
        mode_ == nullptr, "[CommDebugMode] this mode has been entered already");
    mode_ = std::make_unique<CommDebugMode>();
    records_.clear();
    table_.clear();
  }

  void leave() {
    TORCH_CHECK(
        mode_ != nullptr,
        "[CommDebugMode] this mode is not entered: __exit__ was called without "
        "__enter__");
    records_ = records();
    table_ = table();
    mode_.reset();
  }

  std::vector<CommRecord> records() const {
    return mode_ ? mode_->get_records() : records_;
  }

  std::string table() const {
    return mode_ ? mode_->generate_comm_debug_tracing_table() : table_;
  }

 private:
  std::unique_ptr<CommDebugMode> mode_;
  std::vector<CommRecord> records_;
  std::string table_;
};

// The modules whose forward is running in this thread.
std::vector<std::unique_ptr<ModuleScope>>& open_modules() {
  thread_local std::vector<std::unique_ptr<ModuleScope>> scopes;
  return scopes;
}

// A list whose elements are of one kind: tensors (and None), numbers or bools.
c10::IValue list_to_ivalue(const py::sequence& items) {
  const auto all = [&](const auto& is) {
    return std::all_of(items.begin(), items.end(), is);
  };
  if (items.size() > 0 && all([](py::handle item) {
        return item.is_none() || THPVariable_Check(item.ptr());
      })) {
    c10::impl::GenericList tensors(c10::OptionalType::ofTensor());
    bool complete = true;
    for (const auto& item : items) {
      complete &= !item.is_none();
      tensors.push_back(
          item.is_none() ? c10::IValue()
                         : c10::IValue(THPVariable_Unpack(item.ptr())));
    }
    return complete ? c10::IValue(items.cast<std::vector<at::Tensor>>())
                    : c10::IValue(tensors);
  }
  if (all([](py::handle item) { return py::isinstance<py::bool_>(item); }) &&
      items.size() > 0) {
    c10::List<bool> bools;
    for (const auto& item : items) bools.push_back(item.cast<bool>());
    return bools;
  }
  if (all([](py::handle item) { return py::isinstance<py::int_>(item); })) {
    return items.cast<std::vector<int64_t>>();
  }
  TORCH_CHECK_TYPE(
      all([](py::handle item) {
        return py::isinstance<py::int_>(item) ||
               py::isinstance<py::float_>(item);
      }),
      "[explain] expected a list of tensors or of numbers, got ",
      describe(items));
  return items.cast<std::vector<double>>();
}

// An argument of an op, of the kinds that ops with tensors take.
c10::IValue to_ivalue(py::handle value) {
  if (value.is_none()) return {};
  if (THPVariable_Check(value.ptr())) return THPVariable_Unpack(value.ptr());
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) {
    return as_int(value, "explain", "an argument");
  }
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (THPDtype_Check(value.ptr())) return value.cast<at::ScalarType>();
  TORCH_CHECK_TYPE(
      py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value),
      "[explain] expected tensors, numbers, text or lists of them, got ",
      describe(value));
  return list_to_ivalue(value.cast<py::sequence>());
}

// A guard of C++ that is held while the scope is entered; it may be entered
// again.
template <typename Guard>
class GuardScope {
 public:
  explicit GuardScope(const char* name) : guards_(name) {}
  void enter() { guards_.enter(); }
  void leave() { guards_.leave(); }

 private:
  GuardStack<Guard> guards_;
};

struct PyImplicitReplication : GuardScope<ImplicitReplication> {
  PyImplicitReplication() : GuardScope("implicit_replication") {}
};
struct PyStrict : GuardScope<Strict> {
  PyStrict() : GuardScope("strict") {}
};
struct PyExplicitCommunication : GuardScope<ExplicitCommunication> {
  PyExplicitCommunication() : GuardScope("explicit_communication") {}
};

template <typename Scope>
py::class_<Scope> bind_scope(py::module_& m, const char* name) {
  py::class_<Scope> type(m, name);
  type.def(py::init<>());
  return def_scope(type);
}

}  // namespace

void bind_debugging(py::module_& m) {
  py::class_<CommRecord>(
      m, "CommRecord", "The collectives of one kind that one op caused.")
      .def_readonly("op", &CommRecord::op)
      .def_readonly("backward", &CommRecord::backward)
      .def_readonly("collective", &CommRecord::collective)
      .def_readonly("group_size", &CommRecord::group_size)
      .def_readonly("count", &CommRecord::count)
      .def_readonly("bytes", &CommRecord::bytes)
      .def_readonly("module", &CommRecord::module)
      .def_readonly("arguments", &CommRecord::arguments)
      .def_readonly("bytes_by_rank", &CommRecord::bytes_by_rank)
      .def("__repr__", [](const CommRecord& r) {
        return c10::str(
            "CommRecord(op='",
            r.op,
            "', backward=",
            r.backward ? "True" : "False",
            ", collective='",
            r.collective,
            "', group_size=",
            r.group_size,
            ", count=",
            r.count,
            ", bytes=",
            r.bytes,
            ", module='",
            r.module,
            "', arguments='",
            r.arguments,
            "')");
      });

  bind_scope<PyCommDebugMode>(m, "CommCounter")
      .def("records", &PyCommDebugMode::records)
      .def("table", &PyCommDebugMode::table);
  m.def(
      "open_module",
      [](const std::string& name) {
        open_modules().push_back(std::make_unique<ModuleScope>(name));
      },
      py::arg("name"));
  m.def("close_module", [] {
    if (!open_modules().empty()) open_modules().pop_back();
  });
  m.def(
      "name_parameter", &name_parameter, py::arg("parameter"), py::arg("name"));
  bind_scope<PyImplicitReplication>(m, "ImplicitReplication");
  bind_scope<PyStrict>(m, "Strict");
  bind_scope<PyExplicitCommunication>(m, "ExplicitCommunication");

  m.def(
      "explain",
      [](const std::string& op, const py::args& args) {
        std::vector<c10::IValue> values;
        for (const auto& arg : args) {
          values.push_back(to_ivalue(arg));
        }
        return explain(op, values);
      },
      py::arg("op"));
  m.def(
      "explain_call",
      [](const std::string& name,
         const py::function& call,
         const std::vector<at::Tensor>& tensors) {
        return explain(
            name,
            [&](at::TensorList layouts) { call(layouts.vec()); },
            tensors);
      },
      py::arg("name"),
      py::arg("call"),
      py::arg("tensors"));
  m.def(
      "visualize_sharding",
      py::overload_cast<const at::Tensor&>(&visualize_sharding),
      py::arg("tensor"));
  m.def(
      "visualize_sharding_svg",
      py::overload_cast<const at::Tensor&>(&visualize_sharding_svg),
      py::arg("tensor"));
}

}  // namespace tessera::python
