// A bound for calls that have none: a store whose server has stopped answers
// neither a question nor the request to give up a wait.
#pragma once

#include <c10/util/Exception.h>

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <thread>

namespace tessera::detail {

// What `call` returns, or throws, if it ends in time. Otherwise throws
// c10::Error and leaves the call alone in its thread: it must own all it needs.
template <typename T>
T within(std::chrono::milliseconds limit, std::function<T()> call) {
  auto task = std::make_shared<std::packaged_task<T()>>(std::move(call));
  auto result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  TORCH_CHECK(
      result.wait_for(limit) == std::future_status::ready,
      "the store does not answer");
  return result.get();
}

}  // namespace tessera::detail
