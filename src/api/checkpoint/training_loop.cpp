#include <c10/util/Exception.h>

#include <atomic>
#include <csignal>
#include <exception>
#include <utility>

#include "api/checkpoint/pending_save.h"
#include "tessera/checkpoint.h"

namespace tessera {

namespace {

volatile std::sig_atomic_t terminated = 0;
std::atomic<int> loops = 0;
struct sigaction handler_before;

void note_signal(int) { terminated = 1; }

}  // namespace

TrainingLoop::TrainingLoop(
    std::string root,
    torch::nn::Module& module,
    Optimizers optimizers,
    TrainingLoopOptions options)
    : root_(std::move(root)),
      module_(module),
      optimizers_(std::move(optimizers)),
      options_(options) {
  TORCH_CHECK_VALUE(
      options_.total >= 0 && options_.every >= 1 && options_.keep >= 0,
      "[TrainingLoop] expected a total of 0 or more steps, a checkpoint every "
      "1 "
      "or more, and 0 (all) or more to keep, but got ",
      options_.total,
      ", ",
      options_.every,
      " and ",
      options_.keep);
  TORCH_CHECK_VALUE(
      !root_.empty(),
      "[TrainingLoop] expected the directory of a run, but got an empty path");
  if (const auto found = load_latest(root_, module_, optimizers_)) {
    step_ = found->step;
  }
  if (loops++ == 0) {
    terminated = 0;
    struct sigaction action {};
    action.sa_handler = &note_signal;
    ::sigaction(SIGTERM, &action, &handler_before);
  }
}

TrainingLoop::~TrainingLoop() {
  if (--loops == 0) ::sigaction(SIGTERM, &handler_before, nullptr);
  try {
    detail::finish_pending_save();
  } catch (const std::exception& error) {
    TORCH_WARN("[TrainingLoop] the last save failed: ", error.what());
  }
}

void TrainingLoop::save_step() {
  const SaveOptions options{.step = step_, .keep = options_.keep};
  if (options_.asynchronous && !preempted_ && step_ < options_.total) {
    save_async(root_, module_, optimizers_, options);
  } else {
    save(root_, module_, optimizers_, options);
  }
}

bool TrainingLoop::next() {
  if (!std::exchange(started_, true)) return step_ < options_.total;
  ++step_;
  preempted_ = any_rank(terminated != 0);
  if (step_ % options_.every == 0 || step_ >= options_.total || preempted_) {
    save_step();
  }
  return !preempted_ && step_ < options_.total;
}

}  // namespace tessera
