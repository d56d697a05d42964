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

LookupWay way_of(const std::string& way) {
  if (way == "cheapest") return LookupWay::Cheapest;
  if (way == "gather") return LookupWay::Gather;
  TORCH_CHECK_VALUE(
      way == "exchange",
      "[EmbeddingScope] expected way 'cheapest', 'gather' or 'exchange', got '",
      way,
      "'");
  return LookupWay::Exchange;
}

}  // namespace

BagWay bag_way_of(
    const char* caller, const char* argument, const std::string& way) {
  if (way == "cheapest") return BagWay::Cheapest;
  if (way == "pooled") return BagWay::Pooled;
  TORCH_CHECK_VALUE(
      way == "rows",
      "[",
      caller,
      "] expected ",
      argument,
      " 'cheapest', 'pooled' or 'rows', got '",
      way,
      "'");
  return BagWay::Rows;
}

namespace {

class PyEmbeddingScope {
 public:
  PyEmbeddingScope(
      const std::string& way, const std::string& bag_way, bool max_norm)
      : options_{
            way_of(way),
            bag_way_of("EmbeddingScope", "bag_way", bag_way),
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
      "How lookups in sharded tables are carried out, in this thread. `way` is "
      "for indices that are sharded over the ranks which share a table's rows: "
      "'gather', 'exchange' or whichever is 'cheapest'. `bag_way` is what an "
      "exchange brings to bags: what owners have 'pooled', 'rows', or "
      "whichever is 'cheapest'. `max_norm` allows "
      "modules with max_norm to renormalise distributed tables. Scopes nest.");
  scope.def(
      py::init<const std::string&, const std::string&, bool>(),
      py::kw_only(),
      py::arg("way") = "cheapest",
      py::arg("bag_way") = "cheapest",
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
