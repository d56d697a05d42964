#include "comm/process/nccl.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>
#include <cstring>

namespace tessera::detail {

namespace {

using c10d::ProcessGroupNCCL;

// c10d's own watchdog ends the process where a collective fails. Ours names the
// collective and the group, and lets the program go on.
class QuietNccl final : public ProcessGroupNCCL {
 public:
  QuietNccl(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      const c10::intrusive_ptr<Options>& options)
      : ProcessGroupNCCL(store, rank, size, options) {
    asyncErrorHandling_ = c10d::NoHandling;
  }

  ~QuietNccl() override {
    try {
      shutdown();
    } catch (const std::exception&) {
      // A peer has gone, or the group was given up: nothing is left to end.
    }
  }
};

// c10d must not give up before the World's timeout, which may change.
constexpr std::chrono::hours kLonger{24 * 365};

std::function<bool()> mark_stream(c10::DeviceIndex device) {
  if (c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
      c10::cuda::CaptureStatus::None) {
    return {};
  }
  auto event = std::make_shared<at::cuda::CUDAEvent>(cudaEventDisableTiming);
  event->record(at::cuda::getCurrentCUDAStream(device));
  return [event] {
    // A graph that another thread records must not mind the question.
    const c10::cuda::CUDAStreamCaptureModeGuard guard{
        cudaStreamCaptureModeThreadLocal};
    return event->query();
  };
}

std::string describe(c10d::ErrorType error) {
  switch (error) {
    case c10d::ErrorType::SUCCESS:
      return "";
    case c10d::ErrorType::TIMEOUT:
      return "NCCL timed out";
    case c10d::ErrorType::COMM_ERROR:
      return "NCCL reports an error of the communicator";
    case c10d::ErrorType::REMOTE_ERROR:
      return "NCCL reports an error of another rank";
  }
  return "NCCL reports an error";
}

}  // namespace

std::string nccl_device_name(c10::Device device) {
  const char* const wanted = std::getenv("TESSERA_NCCL");
  if (!device.is_cuda() ||
      (wanted != nullptr && std::strcmp(wanted, "0") == 0)) {
    return "";
  }
  const auto& uuid = at::cuda::getDeviceProperties(device.index())->uuid;
  std::string name;
  for (const char byte : uuid.bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    const auto value = static_cast<unsigned char>(byte);
    name += kDigits[value >> 4];
    name += kDigits[value & 15];
  }
  return name;
}

DeviceBackend make_nccl(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int64_t>& ranks,
    int64_t coordinate,
    c10::Device device) {
  auto options = ProcessGroupNCCL::Options::create();
  options->timeout = kLonger;
  for (const int64_t rank : ranks) {
    options->global_ranks_in_group.push_back(static_cast<uint64_t>(rank));
  }
  auto nccl = c10::make_intrusive<QuietNccl>(
      store,
      static_cast<int>(coordinate),
      static_cast<int>(ranks.size()),
      options);
  DeviceBackend made;
  made.backend = nccl;
  made.mark = [index = device.index()] { return mark_stream(index); };
  made.failure = [backend = nccl.get()] {
    return describe(backend->getError());
  };
  return made;
}

}  // namespace tessera::detail
