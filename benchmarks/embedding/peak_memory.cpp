#include "embedding/peak_memory.h"

#include <c10/util/Exception.h>

#include <fstream>
#include <string>

namespace tessera::bench {

namespace {

int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) {
      return std::stoll(line.substr(field.size() + 1)) * 1024;
    }
  }
  TORCH_CHECK(false, "[bench_embedding] no ", field, " in /proc/self/status");
}

// The mark of the highest use so far is lowered to the present one.
void forget_peak() {
  std::ofstream refs("/proc/self/clear_refs");
  refs << "5";
  refs.close();
  TORCH_CHECK(refs.good(), "[bench_embedding] cannot write clear_refs");
}

}  // namespace

int64_t peak_memory_of(const std::function<void()>& call) {
  forget_peak();
  const int64_t before = status_bytes("VmRSS");
  call();
  return status_bytes("VmHWM") - before;
}

}  // namespace tessera::bench
