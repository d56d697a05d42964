#include "embedding/tiny.h"

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <limits>

#include "tessera/distribute.h"

namespace tessera::bench {

namespace {

double thread_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 +
         static_cast<double>(now.tv_nsec);
}

// As in a program without distributed tensors: their ops leave a thread in the
// mode in which autograd records how to replay views, and plain views cost
// more.
void forget_distributed_ops() {
  c10::AutogradState::get_tls_state().set_view_replay_enabled(false);
}

double sample(const std::function<void()>& call) {
  constexpr int kCalls = 2000;
  const double start = thread_nanoseconds();
  for (int i = 0; i < kCalls; ++i) {
    call();
  }
  return (thread_nanoseconds() - start) / kCalls;
}

}  // namespace

TinyTimes tiny_times(const DeviceMesh& mesh) {
  const c10::NoGradGuard no_grad;
  const auto weight = at::rand({16, 8});
  const auto indices = at::arange(20).remainder(16).view({5, 4});
  const auto place = [&](const at::Tensor& value, const Placement& placement) {
    return at::Tensor(distribute_tensor(
        value, mesh, {placement}, {.same_on_all_ranks = true}));
  };
  const auto ids = place(indices, Replicate());
  const auto rows = place(weight, Shard(0));
  const auto columns = place(weight, Shard(1));
  constexpr double kNone = std::numeric_limits<double>::infinity();
  TinyTimes best{kNone, kNone, kNone};
  for (int i = 0; i < 15; ++i) {
    forget_distributed_ops();
    best.plain =
        std::min(best.plain, sample([&] { at::embedding(weight, indices); }));
    best.row_wise =
        std::min(best.row_wise, sample([&] { at::embedding(rows, ids); }));
    best.column_wise = std::min(
        best.column_wise, sample([&] { at::embedding(columns, ids); }));
  }
  return best;
}

}  // namespace tessera::bench
