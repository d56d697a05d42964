// Counting communication, drawing and explaining layouts, and the guard that
// takes plain tensors as replicated: scopes of C++ as context managers.
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "convert.h"
#include "tessera/debug.h"
#include "tessera/dtensor.h"

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

// An argument of an op, of the kinds that ops with tensors take.
c10::IValue to_ivalue(py::handle value) {
  if (value.is_none()) return {};
  if (THPVariable_Check(value.ptr())) return THPVariable_Unpack(value.ptr());
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (THPDtype_Check(value.ptr())) return value.cast<at::ScalarType>();
  TORCH_CHECK_TYPE(
      py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value),
      "[explain] expected tensors, numbers, text or lists of them, got ",
      py::repr(value).cast<std::string>());
  const auto items = value.cast<py::sequence>();
  if (items.size() > 0 && THPVariable_Check(py::object(items[0]).ptr())) {
    return value.cast<std::vector<at::Tensor>>();
  }
  return value.cast<std::vector<int64_t>>();
}

class PyImplicitReplication {
 public:
  void enter() { guards_.push_back(std::make_unique<ImplicitReplication>()); }
  void leave() { guards_.pop_back(); }

 private:
  std::vector<std::unique_ptr<ImplicitReplication>> guards_;
};

template <typename Scope>
py::class_<Scope> bind_scope(py::module_& m, const char* name) {
  return py::class_<Scope>(m, name)
      .def(py::init<>())
      .def(
          "__enter__",
          [](py::object self) {
            self.cast<Scope&>().enter();
            return self;
          })
      .def("__exit__", [](Scope& self, py::args) { self.leave(); });
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
            ")");
      });

  bind_scope<PyCommDebugMode>(m, "CommCounter")
      .def("records", &PyCommDebugMode::records)
      .def("table", &PyCommDebugMode::table);
  bind_scope<PyImplicitReplication>(m, "ImplicitReplication");

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
      "visualize_sharding",
      py::overload_cast<const at::Tensor&>(&visualize_sharding),
      py::arg("tensor"));
  m.def(
      "visualize_sharding_svg",
      py::overload_cast<const at::Tensor&>(&visualize_sharding_svg),
      py::arg("tensor"));
}

}  // namespace tessera::python
