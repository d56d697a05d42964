#include "tessera/language.h"

#include <array>
#include <atomic>
#include <utility>

namespace tessera {

namespace {

std::atomic<bool> python{false};

using Words = std::pair<std::string_view, std::string_view>;

// What Python calls otherwise; the longer ones first.
constexpr std::array kWords{
    Words{"auto world = World::simulate(4)", "with tessera.simulate(4): ..."},
    Words{
        "hold an ImplicitReplication guard to take plain tensors as replicated",
        "take plain tensors as replicated in a scope, `with "
        "tessera.implicit_replication():`"},
    Words{
        "hold an EmbeddingScope with max_norm = true to allow it",
        "allow it in a scope, `with tessera.EmbeddingScope(max_norm=True):`"},
    Words{
        "hold an EmbeddingScope with LookupStrategy::Gather",
        "use `with tessera.EmbeddingScope(strategy=\"gather\"):`"},
    Words{"tessera::sharded::embedding", "tessera.sharded.sharded_embedding"},
    Words{"tessera::ExplicitCommunication", "tessera.explicit_communication()"},
    Words{"options.shape", "shape"},
    Words{"options.uneven", "uneven=True"},
    Words{"to(torch::kLong)", "to(torch.long)"},
    Words{"World::simulate", "tessera.simulate"},
    Words{", at::kMeta)", ")"},
};

// Members of classes and of the library: DTensor::from_local.
constexpr std::array<std::string_view, 5> kScopes{
    "DTensor", "World", "ShardedTensor", "DeviceMesh", "tessera"};

void replace_all(
    std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

void speak_python() { python = true; }
bool speaks_python() { return python; }

std::string spell(std::string_view text) {
  std::string result(text);
  if (!python) {
    return result;
  }
  for (const auto& [from, to] : kWords) {
    replace_all(result, from, to);
  }
  for (const auto scope : kScopes) {
    const std::string name(scope);
    replace_all(result, name + "::", name + ".");
  }
  return result;
}

}  // namespace tessera
