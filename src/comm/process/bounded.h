// A bound for calls that have none: a store whose server has stopped answers
// neither a question nor the request to give up a wait.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "comm/deadline.h"

namespace tessera::detail {

// When to give up a call that ends within `timeout` if the store answers.
inline Deadline until_given_up(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kMargin{1000};
  return after(from_now(timeout), kMargin);
}

// What `call` returns, or throws, if it ends in time. Otherwise throws
// c10::Error and leaves the call alone in its thread: it must own all it needs.
template <typename T>
T within(Deadline until, std::function<T()> call) {
  auto task = std::make_shared<std::packaged_task<T()>>(std::move(call));
  auto result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  TORCH_CHECK(
      result.wait_until(until) == std::future_status::ready,
      "the store does not answer");
  return result.get();
}

// A timeout as c10d takes it, which counts milliseconds in an int here and
// there.
inline std::chrono::milliseconds c10d_timeout(
    std::chrono::milliseconds timeout) {
  return std::min(timeout, std::chrono::milliseconds(INT32_MAX));
}

}  // namespace tessera::detail
