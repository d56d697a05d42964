// Checkpoints of maps of tensors. What Python's modules, optimizers and nested
// dicts are as such a map is in the package.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "convert.h"
#include "tessera/checkpoint.h"

namespace tessera::python {

namespace {

using Values = std::map<std::string, std::string>;

// What a callback raises, as the library's error: other ranks are told of it.
[[noreturn]] void throw_from_python(const py::error_already_set& error) {
  const auto text = py::str(error.value()).cast<std::string>();
  TORCH_CHECK_TYPE(!error.matches(PyExc_TypeError), text);
  TORCH_CHECK_INDEX(!error.matches(PyExc_IndexError), text);
  TORCH_CHECK_NOT_IMPLEMENTED(!error.matches(PyExc_NotImplementedError), text);
  TORCH_CHECK_VALUE(false, text);
}

// Called without the interpreter lock.
TensorsFor as_tensors_for(py::function function) {
  auto held = std::shared_ptr<py::function>(
      new py::function(std::move(function)), [](py::function* f) {
        const py::gil_scoped_acquire gil;
        delete f;
      });
  return [held](const std::string& path) {
    const py::gil_scoped_acquire gil;
    try {
      return (*held)(path).cast<TensorMap>();
    } catch (const py::error_already_set& error) {
      throw_from_python(error);
    }
  };
}

SaveOptions save_options(int64_t step, int64_t keep, Values values) {
  SaveOptions options;
  options.step = step;
  options.keep = keep;
  options.values = std::move(values);
  return options;
}

py::dict tensors_in(const std::string& path) {
  std::map<std::string, SavedTensorInfo> infos;
  {
    const py::gil_scoped_release no_gil;
    infos = checkpoint_info(path).tensors;
  }
  py::dict out;
  for (const auto& [name, info] : infos) {
    out[py::str(name)] =
        py::make_tuple(to_python(SizesRef(info.shape)), py::cast(info.dtype));
  }
  return out;
}

}  // namespace

void bind_checkpoint(py::module_& m) {
  py::class_<CheckpointInfo>(
      m, "CheckpointInfo", "What a checkpoint says of itself.")
      .def_readonly("path", &CheckpointInfo::path)
      .def_readonly("step", &CheckpointInfo::step)
      .def_readonly("ranks", &CheckpointInfo::ranks)
      .def_readonly("values", &CheckpointInfo::values)
      .def_readonly("skipped", &CheckpointInfo::skipped)
      .def("__repr__", [](const CheckpointInfo& info) {
        return c10::str(
            "CheckpointInfo(path='",
            info.path,
            "', step=",
            info.step,
            ", ranks=",
            info.ranks,
            ")");
      });

  py::class_<PendingSave>(
      m, "PendingSave", "A save that goes on in the background.")
      .def(
          "wait",
          &PendingSave::wait,
          py::call_guard<py::gil_scoped_release>(),
          "Waits until the checkpoint is there and returns its path, or raises "
          "what went wrong.")
      .def(
          "done",
          &PendingSave::done,
          "Whether the checkpoint is there, or the save has failed.");

  m.def(
      "checkpoint_save",
      [](const std::string& root,
         const TensorMap& tensors,
         int64_t step,
         int64_t keep,
         Values values) {
        const py::gil_scoped_release no_gil;
        return save(root, tensors, save_options(step, keep, std::move(values)));
      },
      py::arg("root"),
      py::arg("tensors"),
      py::arg("step"),
      py::arg("keep"),
      py::arg("values"));
  m.def(
      "checkpoint_save_async",
      [](const std::string& root,
         const TensorMap& tensors,
         int64_t step,
         int64_t keep,
         Values values) {
        const py::gil_scoped_release no_gil;
        return save_async(
            root, tensors, save_options(step, keep, std::move(values)));
      },
      py::arg("root"),
      py::arg("tensors"),
      py::arg("step"),
      py::arg("keep"),
      py::arg("values"));
  m.def(
      "checkpoint_load",
      [](const std::string& path, py::function tensors_for, bool generators) {
        const auto request = as_tensors_for(std::move(tensors_for));
        const py::gil_scoped_release no_gil;
        return load(path, request, {.generators = generators});
      },
      py::arg("path"),
      py::arg("tensors_for"),
      py::arg("generators"));
  m.def(
      "checkpoint_load_latest",
      [](const std::string& root, py::function tensors_for, bool generators) {
        const auto request = as_tensors_for(std::move(tensors_for));
        // What is left out is a warning of Python's.
        torch::PyWarningHandler warnings;
        try {
          const py::gil_scoped_release no_gil;
          return load_latest(root, request, {.generators = generators});
        } catch (...) {
          warnings.set_in_exception();
          throw;
        }
      },
      py::arg("root"),
      py::arg("tensors_for"),
      py::arg("generators"));
  m.def(
      "checkpoint_load_plain",
      [](const std::string& path, std::vector<std::string> names, bool mmap) {
        const py::gil_scoped_release no_gil;
        return load_plain(path, {std::move(names), mmap});
      },
      py::arg("path"),
      py::arg("names"),
      py::arg("mmap"));
  m.def("checkpoint_tensors", &tensors_in, py::arg("path"));
  m.def(
      "checkpoint_info",
      [](const std::string& path) {
        const py::gil_scoped_release no_gil;
        return checkpoint_info(path);
      },
      py::arg("path"));
  m.def("checkpoints_in", &checkpoints_in, py::arg("root"));
  m.def(
      "checkpoint_merge",
      [](const std::string& path,
         const std::string& file,
         const std::string& prefix,
         int64_t max_file_bytes) {
        const py::gil_scoped_release no_gil;
        return merge(
            path, file, {.prefix = prefix, .max_file_bytes = max_file_bytes});
      },
      py::arg("path"),
      py::arg("file"),
      py::arg("prefix"),
      py::arg("max_file_bytes"));
  m.def(
      "any_rank",
      [](bool mine) {
        const py::gil_scoped_release no_gil;
        return any_rank(mine);
      },
      py::arg("mine"));
}

}  // namespace tessera::python
