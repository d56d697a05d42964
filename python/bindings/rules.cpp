// Rules for ops of one's own.
#include "tessera/rule.h"

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include "convert.h"

namespace tessera::python {

namespace {

constexpr const char* kCaller = "register_rule";

// A plain argument as Python sees it; text for what has no Python value here.
py::object plain_value(const c10::IValue& value) {
  if (value.isNone()) return py::none();
  if (value.isBool()) return py::bool_(value.toBool());
  if (value.isInt()) return py::int_(value.toInt());
  if (value.isDouble()) return py::float_(value.toDouble());
  if (value.isString()) return py::str(value.toStringRef());
  if (value.isIntList()) return to_python(SizesRef(value.toIntVector()));
  return py::str(c10::str(value));
}

// What a rule is asked about: the shapes of the tensors (None for one that is
// not given) and the plain arguments by name.
py::tuple arguments_of(const OpCall& call) {
  py::list shapes;
  for (const auto& tensor : call.tensors()) {
    shapes.append(
        tensor.defined ? py::object(to_python(SizesRef(tensor.sizes)))
                       : py::object(py::none()));
  }
  py::dict plain;
  for (const auto& argument : call.schema().arguments()) {
    const auto& value = call.argument(argument.name());
    if (!value.isTensor() && !value.isTensorList()) {
      plain[py::str(argument.name())] = plain_value(value);
    }
  }
  return py::make_tuple(std::move(shapes), std::move(plain));
}

c10::SmallVector<Placement, 4> side_of(py::handle placements) {
  c10::SmallVector<Placement, 4> result;
  // One placement stands for a list of one.
  if (py::isinstance<Placement>(placements)) {
    result.push_back(as_placement(placements, kCaller));
    return result;
  }
  const auto given = as_optional_placements(placements, kCaller);
  TORCH_CHECK_TYPE(
      given.has_value(),
      "[register_rule] expected placements on both sides of a row, got None");
  result.append(given->begin(), given->end());
  return result;
}

Rows rows_of(py::handle rows) {
  TORCH_CHECK_TYPE(
      py::isinstance<py::list>(rows) || py::isinstance<py::tuple>(rows),
      "[register_rule] expected a list of rows, (inputs, outputs), got ",
      describe(rows));
  Rows result;
  for (const auto& row : rows.cast<py::sequence>()) {
    TORCH_CHECK_TYPE(
        (py::isinstance<py::list>(row) || py::isinstance<py::tuple>(row)) &&
            py::len(row) == 2,
        "[register_rule] expected a row as a pair of lists, placements of the "
        "tensor arguments and of the results, got ",
        describe(row));
    const auto pair = row.cast<py::sequence>();
    const auto outputs = side_of(py::object(pair[1]));
    result.push_back(
        Row(side_of(py::object(pair[0])),
            c10::SmallVector<Placement, 2>(outputs.begin(), outputs.end())));
  }
  return result;
}

// Python's function, kept for good: the table of rules outlives the
// interpreter.
using Function = std::function<py::object(const OpCall&)>;

Function keep(const py::object& function) {
  const py::handle kept = function;
  kept.inc_ref();
  return [kept](const OpCall& call) {
    return py::reinterpret_borrow<py::object>(kept)(*arguments_of(call));
  };
}

void register_python_rule(
    const std::string& op, const py::object& rows, const py::object& shapes) {
  Rule rule;
  if (PyCallable_Check(rows.ptr()) != 0) {
    rule.rows = [ask = keep(rows)](const OpCall& call) {
      const py::gil_scoped_acquire gil;
      return rows_of(ask(call));
    };
  } else {
    rule.rows = [fixed = rows_of(rows)](const OpCall&) { return fixed; };
  }
  if (!shapes.is_none()) {
    TORCH_CHECK_TYPE(
        PyCallable_Check(shapes.ptr()) != 0,
        "[register_rule] expected a function as output_shapes, got ",
        describe(shapes));
    rule.output_sizes = [ask = keep(shapes)](const OpCall& call) {
      const py::gil_scoped_acquire gil;
      const auto answer = ask(call);
      TORCH_CHECK_TYPE(
          py::isinstance<py::list>(answer) || py::isinstance<py::tuple>(answer),
          "[register_rule] expected a list of shapes of output_shapes, got ",
          describe(answer));
      std::vector<Sizes> result;
      for (const auto& shape : answer.cast<py::sequence>()) {
        result.push_back(as_sizes(shape, kCaller));
      }
      return result;
    };
  }
  register_rule(op, std::move(rule));
}

}  // namespace

void bind_rules(py::module_& m) {
  m.def(
      "register_rule",
      &register_python_rule,
      py::arg("op"),
      py::arg("rows"),
      py::kw_only(),
      py::arg("output_shapes") = py::none(),
      "Says in which layouts an op of one's own can be called on shards. `op` "
      "is 'namespace::name' or 'namespace::name.overload'. A row is a pair "
      "(inputs, outputs) of lists with a placement for each tensor argument "
      "and each result, valid on one mesh dimension; that everything may be "
      "replicated need not be said. `rows` is a list of them, or a function "
      "rows(shapes, arguments) of the tensors' shapes and the plain arguments "
      "by name. `output_shapes`, a function of the same, is for ops that have "
      "no meta kernel (register_fake gives one).");
}

}  // namespace tessera::python
