// Guards of C++ as context managers. A guard changes something of its thread
// and restores it when it ends, so it must end in the thread that made it, and
// inner ones first. C++'s scopes see to that; Python's __enter__ and __exit__
// are calls like any other, in any order and thread.
#pragma once

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::python {

// The guards that one Python object has put up. It may be entered again while
// it is entered, as often as it is left.
template <typename Guard>
class GuardStack {
 public:
  explicit GuardStack(const char* name) : name_(name) {}
  GuardStack(const GuardStack&) = delete;
  GuardStack& operator=(const GuardStack&) = delete;

  // Entered and forgotten. What cannot be restored any more stays in force
  // until the scope around it ends.
  ~GuardStack() {
    while (!guards_.empty()) {
      if (is_innermost()) {
        entered().pop_back();
      } else {
        auto& here = entered();
        here.erase(std::remove(here.begin(), here.end(), this), here.end());
        // Its end would restore something of another thread or scope.
        static_cast<void>(guards_.back().second.release());
      }
      guards_.pop_back();
    }
  }

  template <typename... Args>
  void enter(Args&&... args) {
    guards_.emplace_back(
        std::this_thread::get_id(),
        std::make_unique<Guard>(std::forward<Args>(args)...));
    entered().push_back(this);
  }

  void leave() {
    TORCH_CHECK(
        !guards_.empty(),
        "[",
        name_,
        "] this scope is not entered: __exit__ was called without __enter__");
    TORCH_CHECK(
        guards_.back().first == std::this_thread::get_id(),
        "[",
        name_,
        "] this scope was entered in another thread, which must leave it");
    TORCH_CHECK(
        is_innermost(),
        "[",
        name_,
        "] another scope of this kind was entered after this one: leave that "
        "first");
    entered().pop_back();
    guards_.pop_back();
  }

 private:
  // The scopes of this kind that this thread is in, the innermost last.
  static std::vector<const GuardStack*>& entered() {
    static thread_local std::vector<const GuardStack*> scopes;
    return scopes;
  }

  bool is_innermost() const {
    return guards_.back().first == std::this_thread::get_id() &&
           !entered().empty() && entered().back() == this;
  }

  const char* name_;
  std::vector<std::pair<std::thread::id, std::unique_ptr<Guard>>> guards_;
};

// __enter__ and __exit__ for a class with enter() and leave().
template <typename Scope, typename... Options>
pybind11::class_<Scope, Options...>& def_scope(
    pybind11::class_<Scope, Options...>& type) {
  return type
      .def(
          "__enter__",
          [](pybind11::object self) {
            self.cast<Scope&>().enter();
            return self;
          })
      .def(
          "__exit__", [](Scope& self, const pybind11::args&) { self.leave(); });
}

}  // namespace tessera::python
