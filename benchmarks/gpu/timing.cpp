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

double host_microseconds(const std::function<void()>& call, int calls) {
  for (int i = 0; i < calls / 10 + 1; ++i) {
    call();
  }
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) {
    cudaDeviceSynchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) {
      call();
    }
    cudaDeviceSynchronize();
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    times.push_back(taken.count() / calls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
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
