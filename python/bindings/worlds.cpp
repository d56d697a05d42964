// The World as a context manager: Python has no scopes of its own.
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <memory>
#include <utility>

#include "convert.h"
#include "tessera/world.h"

namespace tessera::python {

namespace {

using Milliseconds = std::chrono::milliseconds;

WorldOptions options_of(double timeout) {
  return {Milliseconds(static_cast<int64_t>(timeout * 1000))};
}

// A world that is made when it is entered.
class PyWorld {
 public:
  explicit PyWorld(std::function<World()> make) : make_(std::move(make)) {}
  ~PyWorld() { leave(); }

  void enter() {
    TORCH_CHECK(
        world_ == nullptr,
        "[World] this world has been entered already: make another one");
    py::gil_scoped_release no_gil;
    world_ = std::make_unique<World>(make_());
  }

  void leave() {
    py::gil_scoped_release no_gil;
    world_.reset();
  }

  World& get() const {
    TORCH_CHECK(
        world_ != nullptr,
        "[World] this world is not entered: use it in a with statement");
    return *world_;
  }

 private:
  std::function<World()> make_;
  std::unique_ptr<World> world_;
};

}  // namespace

void bind_worlds(py::module_& m) {
  py::class_<PyWorld>(
      m, "World", "Who the ranks are and which live here; a context manager.")
      .def_static(
          "simulate",
          [](int64_t ranks) {
            return std::make_unique<PyWorld>(
                [ranks] { return World::simulate(ranks); });
          },
          py::arg("ranks"))
      .def_static(
          "connect",
          [](int64_t rank,
             int64_t size,
             const std::string& address,
             uint16_t port,
             double timeout) {
            return std::make_unique<PyWorld>([=] {
              return World::connect(
                  rank, size, address, port, options_of(timeout));
            });
          },
          py::arg("rank"),
          py::arg("size"),
          py::arg("address"),
          py::arg("port"),
          py::arg("timeout") = 300.0)
      .def_static(
          "connect",
          [](int64_t rank,
             int64_t size,
             c10::intrusive_ptr<c10d::Store> store,
             double timeout) {
            return std::make_unique<PyWorld>(
                [=, store = std::move(store)]() mutable {
                  // Given back at once: whoever holds a store may serve it.
                  const auto given = std::exchange(store, {});
                  return World::connect(rank, size, given, options_of(timeout));
                });
          },
          py::arg("rank"),
          py::arg("size"),
          py::arg("store"),
          py::arg("timeout") = 300.0)
      .def_static(
          "from_environment",
          [](int64_t otherwise_simulate, double timeout) {
            return std::make_unique<PyWorld>([=] {
              return World::from_environment(
                  otherwise_simulate, options_of(timeout));
            });
          },
          py::arg("otherwise_simulate") = 1,
          py::arg("timeout") = 300.0)
      .def(
          "__enter__",
          [](py::object self) {
            self.cast<PyWorld&>().enter();
            return self;
          })
      .def("__exit__", [](PyWorld& self, py::args) { self.leave(); })
      .def_property_readonly(
          "size", [](const PyWorld& w) { return w.get().size(); })
      .def_property_readonly(
          "rank", [](const PyWorld& w) { return w.get().rank(); })
      .def_property_readonly(
          "simulated", [](const PyWorld& w) { return w.get().simulated(); })
      .def_property(
          "timeout",
          [](const PyWorld& w) {
            return std::chrono::duration<double>(w.get().timeout()).count();
          },
          [](PyWorld& w, double seconds) {
            w.get().set_timeout(options_of(seconds).timeout);
          },
          "How long a collective may wait, in seconds.")
      .def(
          "barrier",
          [](PyWorld& w) {
            py::gil_scoped_release no_gil;
            w.get().barrier();
          },
          "Waits until every rank has come here.");

  m.def("in_world", &in_world, "Whether a world has been entered.");
}

}  // namespace tessera::python
