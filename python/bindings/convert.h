// What the bindings make of Python arguments, and what Python gets to see of
// the library's values.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <vector>

#include "tessera/embedding.h"
#include "tessera/mesh.h"
#include "tessera/placement.h"
#include "tessera/spec.h"

namespace tessera::python {

namespace py = pybind11;

// Joins the world that torch.distributed or a launcher has put us in, unless
// there is one already. Communicates then. Throws RuntimeError where there is
// none.
void ensure_world();

// A mesh: ours, torch's DeviceMesh, a torch.distributed process group, or None
// for the mesh that was entered with `with mesh:`. May communicate where
// torch's are given (the ranks meet). Throws TypeError on anything else.
DeviceMesh as_mesh(py::handle mesh, const char* caller);

// A placement: ours, or torch's Shard, Replicate or Partial. Throws TypeError
// on anything else.
Placement as_placement(py::handle placement, const char* caller);

// A sequence of placements; nullopt for None. Throws TypeError on anything
// else.
std::optional<Placements> as_optional_placements(
    py::handle placements, const char* caller);

// As above for a tensor of `ndim` dimensions on `mesh`; empty for None. Throws
// ValueError unless there is one placement a mesh dimension.
Placements as_placements(
    py::handle placements,
    const DeviceMesh& mesh,
    int64_t ndim,
    const char* caller);

// A shape or strides: torch.Size, a sequence of integers.
Sizes as_sizes(py::handle sizes, const char* caller);

// A list, a tuple or what behaves like one; no text.
bool is_sequence(py::handle value);

// An integer given as `argument`. Throws TypeError on anything else.
int64_t as_int(py::handle value, const char* caller, const char* argument);

// A list or tuple of tensors given as `argument`. Throws TypeError on anything
// else.
std::vector<at::Tensor> as_tensors(
    py::handle tensors, const char* caller, const char* argument);

// 'cheapest', 'pooled' or 'rows', given as `argument`. Throws ValueError on
// anything else.
BagStrategy bag_strategy_of(
    const char* caller, const char* argument, const std::string& strategy);

// The Python object of a placement's own class (Shard, Replicate, ...).
py::object to_python(const Placement& placement);
py::tuple to_python(PlacementsRef placements);
// A tuple of integers.
py::tuple to_python(SizesRef sizes);
// A DTensorSpec.
py::object to_python(const SpecPtr& spec);

// A Python value in a few words, for errors: never a whole tensor.
std::string describe(py::handle value);

// Each adds the classes and functions of one header to the module.
void bind_placements(py::module_& m);
void bind_meshes(py::module_& m);
void bind_worlds(py::module_& m);
void bind_specs(py::module_& m);
void bind_tensors(py::module_& m);
void bind_factories(py::module_& m);
void bind_rules(py::module_& m);
void bind_debugging(py::module_& m);
void bind_embedding(py::module_& m);
void bind_sharded(py::module_& m);
void bind_sharded_lookups(py::module_& m);
void bind_checkpoint(py::module_& m);
// tensor_method and tensor_property: see attributes.cpp.
void bind_attributes(py::module_& m);
// Objects of the classes that are bound by then are refused where __init__ has
// not made them, and copies of them where a class does not say how.
void bind_made_objects(py::module_& m);
// Wrong arguments of all functions and methods that are bound by then are
// refused in a sentence.
void bind_arguments(py::module_& m);

}  // namespace tessera::python
