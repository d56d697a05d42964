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

std::pair<double, double> host_microseconds(
    const std::function<void()>& a, const std::function<void()>& b) {
  // Fewer than a device holds before it makes the host wait.
  constexpr int kCalls = 200;
  const auto series = [](const std::function<void()>& call) {
    cudaDeviceSynchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) {
      call();
    }
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    return taken.count() / kCalls;
  };
  // In turns, since the machine's speed varies from one moment to the next.
  std::vector<double> first;
  std::vector<double> more;
  for (int round = 0; round < 400; ++round) {
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
