// Times of work on a GPU, and a table of them.
#pragma once

#include <functional>
#include <string>
#include <utility>

namespace tessera::benchmark {

// Milliseconds of `call` on the current stream: the median of several, by the
// device's clock, after two that warm up.
double milliseconds(const std::function<void()>& call, int rounds = 9);

// Microseconds that the host needs for one call of `a` and of `b`: the median
// of many short series in turns, none of which waits for the device.
std::pair<double, double> host_microseconds(
    const std::function<void()>& a, const std::function<void()>& b);

// The same of a loop of ten thousand calls and the wait for the device after
// it: what a program sees.
std::pair<double, double> loop_microseconds(
    const std::function<void()>& a, const std::function<void()>& b);

// One table: each line is a time and, where bytes are given, the bandwidth and
// its share of that of a copy.
class Table {
 public:
  // `copy`: bytes a second, read and written, of a large copy.
  explicit Table(double copy) : copy_(copy) {}

  void add(
      const std::string& name,
      const std::string& whose,
      double milliseconds,
      double bytes,
      const std::string& goal = "") const;

 private:
  double copy_;
};

}  // namespace tessera::benchmark
