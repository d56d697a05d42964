#include "comm/process/nccl.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace tessera::detail {

namespace {

using c10d::ProcessGroupNCCL;

// Who handles the errors of a backend's collectives.
enum class Errors {
  kOurs,  // our watchdog, which names the collective and lets the program go on
  kC10d,  // c10d's, which ends the process
};

class Nccl final : public ProcessGroupNCCL {
 public:
  Nccl(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int64_t>& ranks,
      int64_t coordinate,
      const c10::intrusive_ptr<Options>& options,
      Errors errors)
      : ProcessGroupNCCL(
            store,
            static_cast<int>(coordinate),
            static_cast<int>(ranks.size()),
            options) {
    if (errors == Errors::kOurs) asyncErrorHandling_ = c10d::NoHandling;
  }

  // c10d warns of a backend that is destroyed before it is shut down.
  ~Nccl() override {
    if (!ended_) quietly([this] { ProcessGroupNCCL::shutdown(); });
  }

  void shutdown() override {
    ended_ = true;
    ProcessGroupNCCL::shutdown();
  }
  void abort() override {
    ended_ = true;
    ProcessGroupNCCL::abort();
  }
  // Nothing is left to end where a peer has gone.
  template <typename Call>
  static void quietly(const Call& call) {
    try {
      call();
    } catch (const std::exception&) {
    }
  }

 private:
  std::atomic<bool> ended_{false};
};

// A backend that lives until the program ends (in a static World) outlives the
// driver, without which it cannot be destroyed. It is ended before.
class Living {
 public:
  static void add(const c10::intrusive_ptr<Nccl>& backend) {
    // Never deleted: it is used when static variables are gone.
    static auto* const all = [] {
      // The driver has been loaded before, so it ends later.
      std::atexit([] { instance->end(); });
      return instance = new Living;
    }();
    const std::lock_guard lock(all->mutex_);
    std::erase_if(all->backends_, [](const auto& b) { return b.expired(); });
    all->backends_.emplace_back(backend);
  }

 private:
  void end() {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : backends_) {
      if (const auto backend = weak.lock()) {
        Nccl::quietly([&] { backend->abort(); });
      }
    }
  }

  static inline Living* instance = nullptr;
  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<Nccl>> backends_;
};

// c10d must not give up before the World's timeout, which may change.
constexpr std::chrono::hours kLonger{24 * 365};

c10::intrusive_ptr<ProcessGroupNCCL::Options> options_for(
    const std::vector<int64_t>& ranks, std::chrono::milliseconds timeout) {
  auto options = ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  for (const int64_t rank : ranks) {
    options->global_ranks_in_group.push_back(static_cast<uint64_t>(rank));
  }
  return options;
}

std::function<bool()> mark_stream(c10::DeviceIndex device) {
  if (c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
      c10::cuda::CaptureStatus::None) {
    return {};
  }
  auto event = std::make_shared<at::cuda::CUDAEvent>(cudaEventDisableTiming);
  event->record(at::cuda::getCurrentCUDAStream(device));
  return [event] {
    try {
      // A graph that another thread records must not mind the question.
      const c10::cuda::CUDAStreamCaptureModeGuard guard{
          cudaStreamCaptureModeThreadLocal};
      return event->query();
    } catch (const c10::Error&) {
      return true;  // the device has failed, or the program ends
    }
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
  auto nccl = c10::make_intrusive<Nccl>(
      store, ranks, coordinate, options_for(ranks, kLonger), Errors::kOurs);
  Living::add(nccl);
  DeviceBackend made;
  made.backend = nccl;
  made.mark = [index = device.index()] { return mark_stream(index); };
  made.failure = [backend = nccl.get()] {
    return describe(backend->getError());
  };
  return made;
}

c10::intrusive_ptr<c10d::Backend> make_users_nccl(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int64_t>& ranks,
    int64_t coordinate,
    std::chrono::milliseconds timeout) {
  auto nccl = c10::make_intrusive<Nccl>(
      store, ranks, coordinate, options_for(ranks, timeout), Errors::kC10d);
  Living::add(nccl);
  return nccl;
}

}  // namespace tessera::detail
