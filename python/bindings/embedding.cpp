// What lookups have no argument for: EmbeddingScope as a context manager, and
// MaskBuffer.
#include "tessera/embedding.h"

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "convert.h"
#include "scope.h"
#include "tessera/mask_buffer.h"

namespace tessera::python {

namespace {

LookupStrategy strategy_of(const std::string& strategy) {
  if (strategy == "cheapest") return LookupStrategy::Cheapest;
  if (strategy == "gather") return LookupStrategy::Gather;
  TORCH_CHECK_VALUE(
      strategy == "exchange",
      "[EmbeddingScope] expected strategy 'cheapest', 'gather' or 'exchange', "
      "got '",
      strategy,
      "'");
  return LookupStrategy::Exchange;
}

}  // namespace

BagStrategy bag_strategy_of(
    const char* caller, const char* argument, const std::string& strategy) {
  if (strategy == "cheapest") return BagStrategy::Cheapest;
  if (strategy == "pooled") return BagStrategy::Pooled;
  TORCH_CHECK_VALUE(
      strategy == "rows",
      "[",
      caller,
      "] expected ",
      argument,
      " 'cheapest', 'pooled' or 'rows', got '",
      strategy,
      "'");
  return BagStrategy::Rows;
}

namespace {

class PyEmbeddingScope {
 public:
  PyEmbeddingScope(
      const std::string& strategy,
      const std::string& bag_strategy,
      bool max_norm)
      : options_{
            strategy_of(strategy),
            bag_strategy_of("EmbeddingScope", "bag_strategy", bag_strategy),
            max_norm} {}

  void enter() { scopes_.enter(options_); }
  void leave() { scopes_.leave(); }

 private:
  EmbeddingOptions options_;
  GuardStack<EmbeddingScope> scopes_{"EmbeddingScope"};
};

}  // namespace

void bind_embedding(py::module_& m) {
  py::class_<PyEmbeddingScope> scope(
      m,
      "EmbeddingScope",
      "How lookups in sharded tables are carried out, in this thread. "
      "`strategy` is "
      "for indices that are sharded over the ranks which share a table's rows: "
      "'gather', 'exchange' or whichever is 'cheapest'. `bag_strategy` is what "
      "an "
      "exchange brings to bags: what owners have 'pooled', 'rows', or "
      "whichever is 'cheapest'. `max_norm` allows "
      "modules with max_norm to renormalise distributed tables. Scopes nest.");
  scope.def(
      py::init<const std::string&, const std::string&, bool>(),
      py::kw_only(),
      py::arg("strategy") = "cheapest",
      py::arg("bag_strategy") = "cheapest",
      py::arg("max_norm") = false);
  def_scope(scope);

  m.def(
      "prefer_huge_pages",
      &prefer_huge_pages,
      py::arg("table"),
      "Asks the system for huge pages behind a table on the CPU; do it before "
      "you fill the table. Tables that this library makes are laid so already. "
      "True if the system agreed; nothing is asked for less than 4 MiB.");

  py::class_<MaskBuffer>(
      m,
      "MaskBuffer",
      "The entries of a result that a rank does not answer for. Empty or full.")
      .def(py::init<>())
      .def(
          "materialize_mask",
          &MaskBuffer::materialize_mask,
          py::arg("mask"),
          "Keeps a bool tensor, true where an entry is masked.")
      .def(
          "release_mask",
          &MaskBuffer::release_mask,
          "Forgets the mask; there must be one.")
      .def(
          "apply_mask",
          [](const MaskBuffer& self, at::Tensor tensor) {
            self.apply_mask(tensor);
          },
          py::arg("tensor"),
          "Writes zeros into the masked entries of a tensor, or into masked "
          "rows where it has one dimension more than the mask.")
      .def_property_readonly("is_materialized", &MaskBuffer::is_materialized);
}

}  // namespace tessera::python
