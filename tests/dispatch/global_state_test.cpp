// What an op gives depends on no global state that its plan is not keyed by:
// every sample is run in one state after the other, with the plans of the
// states before in the cache, and must equal one device in that state.
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <gtest/gtest.h>

#include <any>
#include <functional>
#include <iostream>
#include <regex>
#include <string>

#include "dispatch/plan_cache.h"
#include "tessera/dtensor.h"
#include "testing/oracle.h"
#include "testing/worlds.h"

namespace tessera {
namespace global_state_test {

class DefaultDtype {
 public:
  explicit DefaultDtype(at::ScalarType dtype)
      : before_(c10::get_default_dtype()) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  }
  ~DefaultDtype() { c10::set_default_dtype(before_); }

 private:
  caffe2::TypeMeta before_;
};

class Autocast {
 public:
  Autocast() {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
  }
};

class Deterministic {
 public:
  Deterministic() {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  ~Deterministic() {
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  }
};

class MatmulPrecision {
 public:
  MatmulPrecision() { at::globalContext().setFloat32MatmulPrecision("medium"); }
  ~MatmulPrecision() {
    at::globalContext().setFloat32MatmulPrecision("highest");
  }
};

struct State {
  const char* name;
  std::function<void(const std::function<void()>&)> within;
};

template <class Scope, class... Args>
State state(const char* name, Args... args) {
  return {name, [args...](const std::function<void()>& body) {
            const Scope scope(args...);
            body();
          }};
}

struct Nothing {
  ~Nothing() {}
};

const std::vector<State>& states() {
  static const std::vector<State> list{
      state<Nothing>("as usual"),
      state<DefaultDtype>("default dtype double", at::kDouble),
      state<DefaultDtype>("default dtype bfloat16", at::kBFloat16),
      state<Autocast>("autocast"),
      state<Deterministic>("deterministic algorithms"),
      state<ImplicitReplication>("implicit replication"),
      state<MatmulPrecision>("matmul precision"),
      state<c10::NoGradGuard>("no grad"),
      state<Nothing>("as usual again"),
  };
  return list;
}

// Runs the sample in one state; whether one device can.
bool check_in_state(
    const testing::Sample& sample, const DeviceMesh& mesh, const State& in) {
  bool ran = false;
  in.within([&] {
    std::optional<testing::Oracle> oracle;
    try {
      oracle.emplace(sample);
    } catch (const c10::Error&) {
      return;  // refused by one device
    }
    auto layouts = testing::layouts_to_try(oracle->tensors(), mesh, 3, 7);
    layouts.erase(layouts.begin(), layouts.end() - 1);
    for (const auto& layout : layouts) {
      const auto verdict = oracle->check(mesh, layout);
      EXPECT_EQ(verdict.failure, "") << in.name;
    }
    ran = true;
  });
  return ran;
}

TEST(GlobalState, SamplesEqualOneDeviceInEveryState) {
  const char* only = std::getenv("TESSERA_SAMPLE");
  testing::with_mesh({4}, [&](const DeviceMesh& mesh) {
    size_t ran = 0;
    size_t refused = 0;
    for (const auto& sample : testing::all_samples()) {
      if (only != nullptr && !std::regex_match(sample.op, std::regex(only))) {
        continue;
      }
      for (const auto& in : states()) {
        SCOPED_TRACE(in.name);
        ++(check_in_state(sample, mesh, in) ? ran : refused);
      }
    }
    std::cout << ran << " samples and states, " << refused
              << " refused by one device\n";
    EXPECT_LT(refused * 10, ran);
  });
}

}  // namespace global_state_test
}  // namespace tessera
