#include "timing.h"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace tessera::benchmark {

double milliseconds(const std::function<void()>& call, int rounds) {
  call();
  call();
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    at::cuda::CUDAEvent begin(cudaEventDefault);
    at::cuda::CUDAEvent end(cudaEventDefault);
    cudaDeviceSynchronize();
    begin.record();
    call();
    end.record();
    end.synchronize();
    times.push_back(begin.elapsed_time(end));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

namespace {

// The median time of `a`, and that with the median of what `b` takes more, of
// series in turns: the machine's speed varies from one moment to the next.
std::pair<double, double> in_turns(
    int rounds,
    const std::function<double(const std::function<void()>&)>& series,
    const std::function<void()>& a,
    const std::function<void()>& b) {
  std::vector<double> first;
  std::vector<double> more;
  for (int round = 0; round < rounds; ++round) {
    first.push_back(series(a));
    more.push_back(series(b) - first.back());
  }
  const auto median = [](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  const double plain = median(first);
  return {plain, plain + median(more)};
}

// Microseconds a call, of `calls`; with `wait`, until the device is done.
double series(const std::function<void()>& call, int calls, bool wait) {
  cudaDeviceSynchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    call();
  }
  if (wait) cudaDeviceSynchronize();
  const std::chrono::duration<double, std::micro> taken =
      std::chrono::steady_clock::now() - begin;
  return taken.count() / calls;
}

}  // namespace

std::pair<double, double> host_microseconds(
    const std::function<void()>& a, const std::function<void()>& b) {
  // Fewer than a device holds before it makes the host wait.
  const auto time = [](const auto& call) { return series(call, 200, false); };
  return in_turns(400, time, a, b);
}

std::pair<double, double> loop_microseconds(
    const std::function<void()>& a, const std::function<void()>& b) {
  const auto time = [](const auto& call) { return series(call, 10000, true); };
  return in_turns(15, time, a, b);
}

void Table::add(
    const std::string& name,
    const std::string& whose,
    double milliseconds,
    double bytes,
    const std::string& goal) const {
  if (bytes > 0) {
    const double rate = bytes / milliseconds * 1e3;
    std::printf(
        "| %s | %s | %.3f | %.0f | %.0f%% | %s |\n",
        name.c_str(),
        whose.c_str(),
        milliseconds,
        rate / 1e9,
        100 * rate / copy_,
        goal.c_str());
  } else {
    std::printf(
        "| %s | %s | %.4f | | | %s |\n",
        name.c_str(),
        whose.c_str(),
        milliseconds,
        goal.c_str());
  }
  std::fflush(stdout);
}

}  // namespace tessera::benchmark
