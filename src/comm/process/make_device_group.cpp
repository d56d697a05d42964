// Whether a group's shards on GPUs go over NCCL: all of its ranks decide alike.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <set>

#include "comm/errors.h"
#include "comm/process/bounded.h"
#include "comm/process/connect.h"
#include "comm/process/device_group.h"

namespace tessera::detail {

namespace {

// How a group with a GPU for each rank met; or why it is none.
struct GpuMeeting {
  c10::intrusive_ptr<c10d::Store> store;
  const char* why_not = nullptr;
};

// `gpu` is the name of this rank's; "" if it can use none.
GpuMeeting meet_with_gpus(const GroupRequest& request, const std::string& gpu) {
  const auto meeting = meet_group(request, gpu);
  const std::set<std::string> gpus(meeting.texts.begin(), meeting.texts.end());
  if (gpus.contains("")) {
    return {
        {},
        " has ranks without NCCL (torch was built without it, or "
        "TESSERA_NCCL=0 is set)"};
  }
  if (gpus.size() < request.ranks.size()) {
    return {{}, " has ranks that share a GPU, which NCCL refuses"};
  }
  return {meeting.store};
}

}  // namespace

std::unique_ptr<DeviceGroup> make_device_group(
    const GroupRequest& request, const Call& call, c10::Device device) {
  try {
    const auto met = meet_with_gpus(request, nccl_device_name(device));
    if (met.why_not != nullptr) {
      TORCH_WARN_ONCE(
          "[World] ",
          describe_group(request.ranks, call),
          met.why_not,
          ": tensors on GPUs go through host memory");
      return nullptr;
    }
    return std::make_unique<DeviceGroup>(
        request.ranks,
        request.coordinate,
        make_nccl(met.store, request.ranks, request.coordinate, device));
  } catch (const std::exception& error) {
    TORCH_CHECK(
        false,
        tagged_rank(call, request.ranks[request.coordinate]),
        " could not make ",
        describe_group(request.ranks, call),
        " on its GPU: ",
        cause_of(error),
        ". Check that every rank of it is running and calls the same "
        "collectives in the same order");
  }
}

c10::intrusive_ptr<c10d::Backend> make_users_device_backend(
    const GroupRequest& request) {
  const std::string gpu =
      c10::impl::hasDeviceGuardImpl(c10::kCUDA)
          ? nccl_device_name(
                c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice())
          : "";
  const auto met = meet_with_gpus(request, gpu);
  if (met.why_not != nullptr) return {};
  return make_users_nccl(
      met.store,
      request.ranks,
      request.coordinate,
      c10d_timeout(request.timeout));
}

}  // namespace tessera::detail
