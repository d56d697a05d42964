// Lookups in a ShardedTensor. What is no tensor where one is expected goes to
// C++ as an undefined one: it is refused there, on every rank alike.
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "convert.h"
#include "tessera/sharded.h"

namespace tessera::python {

namespace {

using sharded::BagInput;
using sharded::EmbeddingBagFuncOptions;
using sharded::EmbeddingFuncOptions;
using sharded::RowSgd;

ShardedTensor as_weight(py::handle weight) {
  if (!py::isinstance<ShardedTensor>(weight)) return {};
  return weight.cast<const ShardedTensor&>();
}

at::Tensor as_tensor(py::handle object) {
  if (!THPVariable_Check(object.ptr())) return {};
  return THPVariable_Unpack(object.ptr());
}

std::optional<at::Tensor> as_optional_tensor(py::handle object) {
  if (object.is_none()) return std::nullopt;
  return as_tensor(object);
}

// Whether this is a list with an element for each rank that lives here. One
// without any tensor is just something that is no tensor.
bool is_list_of_ranks(py::handle object) {
  if (!py::isinstance<py::list>(object) && !py::isinstance<py::tuple>(object)) {
    return false;
  }
  for (const auto& element : object.cast<py::sequence>()) {
    if (THPVariable_Check(element.ptr())) return true;
  }
  return false;
}

// An argument's value for each of `count` ranks: a list has one for each, what
// is no list must be None or is wrong for all.
std::vector<std::optional<at::Tensor>> for_ranks(
    py::handle object, size_t count, const char* caller, const char* name) {
  if (!is_list_of_ranks(object)) {
    TORCH_CHECK_VALUE(
        !THPVariable_Check(object.ptr()),
        "[",
        caller,
        "] expected a list of ",
        name,
        ", one for each rank as the input is, got one tensor");
    return {count, as_optional_tensor(object)};
  }
  const auto elements = object.cast<py::sequence>();
  TORCH_CHECK_VALUE(
      elements.size() == count,
      "[",
      caller,
      "] expected ",
      name,
      " for each of the ",
      count,
      " inputs, but ",
      elements.size(),
      " were given");
  std::vector<std::optional<at::Tensor>> values;
  for (const auto& element : elements) {
    values.push_back(as_optional_tensor(element));
  }
  return values;
}

// The inputs of the ranks that live here; a single tensor is this process's.
// Something else is wrong for each of them.
std::vector<at::Tensor> as_inputs(
    py::handle input, const ShardedTensor& weight) {
  if (is_list_of_ranks(input)) {
    std::vector<at::Tensor> inputs;
    for (const auto& element : input.cast<py::sequence>()) {
      inputs.push_back(as_tensor(element));
    }
    return inputs;
  }
  const size_t ranks = weight.defined() ? weight.local_shards().size() : 1;
  return std::vector<at::Tensor>(ranks);
}

std::optional<RowSgd> as_update(py::handle update, const char* caller) {
  if (update.is_none()) return std::nullopt;
  TORCH_CHECK_TYPE(
      py::isinstance<RowSgd>(update),
      "[",
      caller,
      "] expected update to be None or a RowSgd, as in update=RowSgd(lr=0.1), "
      "got ",
      describe(update));
  return update.cast<const RowSgd&>();
}

py::object embedding(
    py::handle input,
    py::handle weight,
    std::optional<int64_t> padding_idx,
    std::optional<double> max_norm,
    double norm_type,
    bool scale_grad_by_freq,
    bool sparse,
    py::handle update) {
  const EmbeddingFuncOptions options{
      padding_idx,
      max_norm,
      norm_type,
      scale_grad_by_freq,
      sparse,
      as_update(update, "embedding")};
  const auto table = as_weight(weight);
  if (THPVariable_Check(input.ptr())) {
    const auto own = as_tensor(input);
    at::Tensor rows;
    {
      py::gil_scoped_release no_gil;
      rows = sharded::embedding(own, table, options);
    }
    return py::cast(rows);
  }
  const auto inputs = as_inputs(input, table);
  std::vector<at::Tensor> rows;
  {
    py::gil_scoped_release no_gil;
    rows = sharded::embedding(inputs, table, options);
  }
  return py::cast(rows);
}

py::object embedding_bag(
    py::handle input,
    py::handle weight,
    py::handle offsets,
    std::optional<double> max_norm,
    double norm_type,
    bool scale_grad_by_freq,
    const std::string& mode,
    bool sparse,
    py::handle per_sample_weights,
    bool include_last_offset,
    std::optional<int64_t> padding_idx,
    const std::string& strategy,
    py::handle update) {
  EmbeddingBagFuncOptions options;
  options.max_norm = max_norm;
  options.norm_type = norm_type;
  options.scale_grad_by_freq = scale_grad_by_freq;
  options.mode = mode;
  options.sparse = sparse;
  options.include_last_offset = include_last_offset;
  options.padding_idx = padding_idx;
  options.strategy = bag_strategy_of("embedding_bag", "strategy", strategy);
  options.update = as_update(update, "embedding_bag");
  const auto table = as_weight(weight);
  if (THPVariable_Check(input.ptr())) {
    options.per_sample_weights = as_optional_tensor(per_sample_weights);
    const auto own = as_tensor(input);
    const auto bounds = as_optional_tensor(offsets);
    at::Tensor bags;
    {
      py::gil_scoped_release no_gil;
      bags = sharded::embedding_bag(own, table, bounds, options);
    }
    return py::cast(bags);
  }
  const auto inputs = as_inputs(input, table);
  const size_t count = inputs.size();
  const auto bounds = for_ranks(offsets, count, "embedding_bag", "offsets");
  const auto weights = for_ranks(
      per_sample_weights, count, "embedding_bag", "per_sample_weights");
  std::vector<BagInput> by_rank;
  for (size_t i = 0; i < count; ++i) {
    by_rank.push_back({inputs[i], bounds[i], weights[i]});
  }
  std::vector<at::Tensor> bags;
  {
    py::gil_scoped_release no_gil;
    bags = sharded::embedding_bag(by_rank, table, options);
  }
  return py::cast(bags);
}

void bind_row_sgd(py::module_& m) {
  py::class_<RowSgd>(
      m,
      "RowSgd",
      "Gradient descent on the rows that were looked up: as the backward pass "
      "comes by, row -= lr * gradient, in place. Nothing else of the table is "
      "read or written, and no gradient is left. Two lookups of a table in one "
      "pass make two steps. Needs a weight that requires grad and is a leaf; "
      "under torch.no_grad it does nothing.")
      .def(py::init([](double lr) { return RowSgd{lr}; }), py::arg("lr"))
      .def_readonly("lr", &RowSgd::lr)
      .def(
          "__repr__",
          [](const RowSgd& update) {
            return "RowSgd(lr=" +
                   py::repr(py::float_(update.lr)).cast<std::string>() + ")";
          })
      .def("__reduce__", [](py::object self) {
        return py::make_tuple(
            py::type::of(self), py::make_tuple(self.attr("lr")));
      });
}

}  // namespace

void bind_sharded_lookups(py::module_& m) {
  bind_row_sgd(m);
  m.def(
      "sharded_embedding",
      &embedding,
      py::arg("input"),
      py::arg("weight"),
      py::arg("padding_idx") = py::none(),
      py::arg("max_norm") = py::none(),
      py::arg("norm_type") = 2.0,
      py::arg("scale_grad_by_freq") = false,
      py::arg("sparse") = false,
      py::kw_only(),
      py::arg("update") = py::none(),
      "The rows of this rank's input, integers of any shape, of a table that "
      "is row-wise or column-wise sharded. In a simulated world input is a "
      "list with "
      "one for each rank, and so is the result. Differentiable by "
      "weight.dtensor(); every rank must run the backward pass. With `update` "
      "that pass moves the rows instead of leaving a gradient. Communicates.");
  m.def(
      "sharded_embedding_bag",
      &embedding_bag,
      py::arg("input"),
      py::arg("weight"),
      py::arg("offsets") = py::none(),
      py::arg("max_norm") = py::none(),
      py::arg("norm_type") = 2.0,
      py::arg("scale_grad_by_freq") = false,
      py::arg("mode") = "mean",
      py::arg("sparse") = false,
      py::arg("per_sample_weights") = py::none(),
      py::arg("include_last_offset") = false,
      py::arg("padding_idx") = py::none(),
      py::kw_only(),
      py::arg("strategy") = "cheapest",
      py::arg("update") = py::none(),
      "The pooled rows of this rank's bags, as one device would give them: "
      "input is 2-d, a bag a row, or 1-d with offsets. In a simulated world "
      "input, offsets and per_sample_weights are lists with one for each rank, "
      "and so is the result. `strategy` says how the bags of a row-wise "
      "sharded table "
      "travel: 'pooled', 'rows' or whichever is 'cheapest'. Otherwise as "
      "sharded_embedding.");
}

}  // namespace tessera::python
