// torch's default generators: distributed tensors draw from them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <cstring>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/save_job.h"

namespace tessera::detail {

namespace {

struct NamedGenerator {
  std::string device;
  at::Generator generator;
};

// That of the CPU, and of the current GPU where one is in use.
std::vector<NamedGenerator> default_generators() {
  std::vector<NamedGenerator> all{
      {"cpu", at::detail::getDefaultCPUGenerator()}};
  if (at::globalContext().hasCUDA()) {
    all.push_back(
        {"cuda", at::globalContext().defaultGenerator(c10::Device(at::kCUDA))});
  }
  return all;
}

}  // namespace

std::vector<GeneratorState> generator_states() {
  std::vector<GeneratorState> states;
  for (auto& [device, generator] : default_generators()) {
    at::Tensor state;
    {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      state = generator.get_state();
    }
    // The length first, as words hold eight bytes.
    std::vector<int64_t> words(1 + (state.numel() + 7) / 8);
    words[0] = state.numel();
    std::memcpy(&words[1], state.const_data_ptr(), state.numel());
    states.push_back({device, std::move(words)});
  }
  return states;
}

void restore_generators(const Manifest& manifest, int64_t rank, int64_t ranks) {
  for (auto& [device, generator] : default_generators()) {
    const auto found = manifest.generators.find(device);
    if (found == manifest.generators.end()) continue;
    const auto& states = found->second;
    auto mine = states.find(ranks == manifest.ranks ? rank : 0);
    if (mine == states.end()) mine = states.find(0);
    TORCH_CHECK(
        mine != states.end() && mine->second.size() % 16 == 0 &&
            mine->second.size() >= 16,
        "[load] the checkpoint holds no state of the generator of ",
        device);
    std::vector<uint64_t> words(mine->second.size() / 16);
    bool valid = true;
    for (size_t i = 0; i < words.size(); ++i) {
      const auto digits = std::string_view(mine->second).substr(16 * i, 16);
      valid &= parse_hex16(digits, words[i]);
    }
    const uint64_t bytes = words[0];
    TORCH_CHECK(
        valid && bytes <= 8 * (words.size() - 1),
        "[load] the state of the generator of ",
        device,
        " is damaged");
    const auto state = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), &words[1], bytes);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace tessera::detail
