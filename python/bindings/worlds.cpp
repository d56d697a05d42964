// The World as a context manager: Python has no scopes of its own.
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "convert.h"
#include "scope.h"
#include "tessera/world.h"

namespace tessera::python {

namespace {

using Milliseconds = std::chrono::milliseconds;

// Seconds as floats may be more than the type can tell: these are for ever.
Milliseconds timeout_of(double seconds) {
  TORCH_CHECK_VALUE(
      seconds > 0,
      "[World] the timeout must be a positive number of seconds but is ",
      seconds);
  const double milliseconds = std::ceil(seconds * 1000);
  return milliseconds < static_cast<double>(Milliseconds::max().count())
             ? Milliseconds(static_cast<int64_t>(milliseconds))
             : Milliseconds::max();
}

double seconds_of(Milliseconds timeout) {
  return timeout == Milliseconds::max()
             ? std::numeric_limits<double>::infinity()
             : std::chrono::duration<double>(timeout).count();
}

WorldOptions options_of(double timeout, std::string job) {
  return {timeout_of(timeout), std::move(job)};
}

// A world that is made when it is entered. Worlds belong to the process: any
// thread may leave them, in any order.
class PyWorld {
 public:
  PyWorld(std::string text, std::function<World()> make)
      : text_(std::move(text)), make_(std::move(make)) {}
  ~PyWorld() { end(); }

  void enter() {
    TORCH_CHECK(
        world_ == nullptr,
        "[World] this world is entered already: make another one");
    py::gil_scoped_release no_gil;
    world_ = std::make_unique<World>(make_());
  }

  void leave() {
    TORCH_CHECK(
        world_ != nullptr,
        "[World] this world is not entered, so it cannot be left");
    end();
  }

  World& get() const {
    TORCH_CHECK(
        world_ != nullptr,
        "[World] this world is not entered: use it in a with statement, or "
        "call enter()");
    return *world_;
  }

  std::string repr() const {
    if (world_ == nullptr) return "World(" + text_ + ", not entered)";
    if (world_->simulated()) return "World(" + simulated(world_->size()) + ")";
    return "World(" + process(world_->rank(), world_->size()) + ")";
  }

  static std::string simulated(int64_t ranks) {
    return c10::str(ranks, ranks == 1 ? " rank" : " ranks", ", simulated");
  }

  static std::string process(int64_t rank, int64_t size) {
    return c10::str("rank ", rank, " of ", size, " processes");
  }

 private:
  void end() {
    py::gil_scoped_release no_gil;
    world_.reset();
  }

  std::string text_;
  std::function<World()> make_;
  std::unique_ptr<World> world_;
};

std::unique_ptr<PyWorld> simulate(int64_t ranks) {
  // Now, not when it is entered: whoever asked for it is told.
  TORCH_CHECK_VALUE(
      ranks >= 1, "[simulate] expected at least one rank, got ", ranks);
  return std::make_unique<PyWorld>(
      PyWorld::simulated(ranks), [ranks] { return World::simulate(ranks); });
}

}  // namespace

void bind_worlds(py::module_& m) {
  py::class_<PyWorld> world(
      m,
      "World",
      "Who the ranks are and which live here; a context manager. A world "
      "belongs to the process: all threads are in it.");
  world.def_static("simulate", &simulate, py::arg("ranks"))
      .def_static(
          "connect",
          [](int64_t rank,
             int64_t size,
             const std::string& address,
             uint16_t port,
             double timeout,
             std::string job) {
            const auto options = options_of(timeout, std::move(job));
            return std::make_unique<PyWorld>(PyWorld::process(rank, size), [=] {
              return World::connect(rank, size, address, port, options);
            });
          },
          py::arg("rank"),
          py::arg("size"),
          py::arg("address"),
          py::arg("port"),
          py::arg("timeout") = 300.0,
          py::arg("job") = "")
      .def_static(
          "connect",
          [](int64_t rank,
             int64_t size,
             c10::intrusive_ptr<c10d::Store> store,
             double timeout,
             std::string job) {
            const auto options = options_of(timeout, std::move(job));
            return std::make_unique<PyWorld>(
                PyWorld::process(rank, size),
                [=, store = std::move(store)]() mutable {
                  // Given back at once: whoever holds a store may serve it.
                  const auto given = std::exchange(store, {});
                  return World::connect(rank, size, given, options);
                });
          },
          py::arg("rank"),
          py::arg("size"),
          py::arg("store"),
          py::arg("timeout") = 300.0,
          py::arg("job") = "")
      .def_static(
          "from_environment",
          [](int64_t otherwise_simulate, double timeout, std::string job) {
            const auto options = options_of(timeout, std::move(job));
            return std::make_unique<PyWorld>("from the environment", [=] {
              return World::from_environment(otherwise_simulate, options);
            });
          },
          py::arg("otherwise_simulate") = 1,
          py::arg("timeout") = 300.0,
          py::arg("job") = "")
      .def(
          "enter",
          [](py::object self) {
            self.cast<PyWorld&>().enter();
            return self;
          },
          "What the with statement does at its start, for notebooks: meshes "
          "are made in this world until leave(). Returns the world.")
      .def("leave", &PyWorld::leave, "Ends the world, as the with statement.")
      .def("__repr__", &PyWorld::repr)
      .def_property_readonly(
          "size", [](const PyWorld& w) { return w.get().size(); })
      .def_property_readonly(
          "rank", [](const PyWorld& w) { return w.get().rank(); })
      .def_property_readonly(
          "simulated", [](const PyWorld& w) { return w.get().simulated(); })
      .def_property(
          "timeout",
          [](const PyWorld& w) { return seconds_of(w.get().timeout()); },
          [](PyWorld& w, double seconds) {
            w.get().set_timeout(timeout_of(seconds));
          },
          "How long the other ranks may be silent, in seconds; inf is for "
          "ever.")
      .def(
          "barrier",
          [](PyWorld& w) {
            py::gil_scoped_release no_gil;
            w.get().barrier();
          },
          "Waits until every rank has come here.");
  def_scope(world);

  m.def("in_world", &in_world, "Whether a world has been entered.");
  m.def("world_size", &world_size, "How many ranks the innermost world has.");
}

}  // namespace tessera::python
