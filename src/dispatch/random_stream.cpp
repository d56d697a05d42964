#include "dispatch/random_stream.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#include "comm/drawn.h"

namespace tessera::detail {

namespace {

RandomStream draw_stream(
    const std::optional<at::Generator>& given, c10::Device device) {
  const bool own = given.has_value() && given->defined();
  TORCH_CHECK(
      !own || given->device().type() == device.type(),
      "Expected a '",
      device.type(),
      "' device type for generator but found '",
      given->device().type(),
      "'");
  // That of the CPU for every device: the same numbers come out on all.
  at::Generator generator = own ? *given : at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  if (generator.device().is_cpu()) {
    return {generator.get<at::CPUGeneratorImpl>()->random64(), 0};
  }
  // Generators of other devices are counters: what kernels do with one.
  constexpr uint64_t kStep = 4;
  const uint64_t offset = generator.get_offset();
  generator.set_offset(offset + kStep);
  return {generator.current_seed(), offset};
}

}  // namespace

RandomStream next_stream(
    const std::optional<at::Generator>& generator,
    c10::Device device,
    const DeviceMesh& mesh,
    PlacementsRef placements) {
  const auto stream = draw_stream(generator, device);
  if (!mesh.simulated() && !mesh.local_positions().empty()) {
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      if (!placements[m].is_shard()) {
        note_drawn({mesh, m}, random_bits(stream, 0));
      }
    }
  }
  return stream;
}

uint64_t next_random_seed(const DeviceMesh& mesh) {
  const Placements replicated(mesh.ndim(), Replicate());
  return random_bits(
      next_stream(std::nullopt, c10::Device(c10::kCPU), mesh, replicated), 0);
}

}  // namespace tessera::detail
