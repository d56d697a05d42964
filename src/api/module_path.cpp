#include "api/module_path.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tessera/debug.h"

namespace tessera {

namespace detail {

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

// Nodes of a thread are numbered as they are recorded: the path of a node is
// the last one that was entered before its number was given out.
struct Entered {
  uint64_t first_node;
  std::string path;
};

struct PathMemory {
  std::mutex mutex;
  int64_t users = 0;
  std::unordered_map<uint64_t, std::vector<Entered>> by_thread;
  std::unordered_map<const c10::TensorImpl*, std::string> parameters;
};

PathMemory& path_memory() {
  // Never destroyed: backward passes may run while a program ends.
  static auto* instance = new PathMemory;
  return *instance;
}

std::vector<std::string>& open_paths() {
  thread_local std::vector<std::string> paths;
  return paths;
}

std::string innermost_path() {
  return open_paths().empty() ? std::string() : open_paths().back();
}

// Notes that nodes which this thread records from now on are of this path.
void note_path() {
  // During a backward pass (checkpointing) with no scope open: the node's.
  const auto path = current_module_path();
  auto& all = path_memory();
  const std::lock_guard lock(all.mutex);
  if (all.users == 0) {
    return;
  }
  auto& entered = all.by_thread[at::RecordFunction::currentThreadId()];
  const uint64_t next = at::sequence_number::peek();
  if (!entered.empty() && entered.back().first_node == next) {
    entered.back().path = path;
  } else {
    entered.push_back({next, path});
  }
}

std::string path_of(const Node& node) {
  auto& all = path_memory();
  const std::lock_guard lock(all.mutex);
  if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(&node)) {
    const auto found =
        all.parameters.find(leaf->variable.unsafeGetTensorImpl());
    return found == all.parameters.end() ? std::string() : found->second;
  }
  const auto found = all.by_thread.find(node.thread_id());
  if (found == all.by_thread.end()) {
    return {};
  }
  const auto& entered = found->second;
  const auto after = std::upper_bound(
      entered.begin(),
      entered.end(),
      node.sequence_nr(),
      [](uint64_t number, const Entered& e) { return number < e.first_node; });
  return after == entered.begin() ? std::string() : std::prev(after)->path;
}

}  // namespace

RememberModulePaths::RememberModulePaths() {
  {
    auto& all = path_memory();
    const std::lock_guard lock(all.mutex);
    ++all.users;
  }
  note_path();
}

RememberModulePaths::~RememberModulePaths() {
  auto& all = path_memory();
  const std::lock_guard lock(all.mutex);
  if (--all.users == 0) {
    all.by_thread.clear();
    all.parameters.clear();
  }
}

std::string current_module_path() {
  // A forward that runs during a backward pass (checkpointing) has its own.
  if (!open_paths().empty()) {
    return open_paths().back();
  }
  const auto node = torch::autograd::get_current_node();
  return node == nullptr ? std::string() : path_of(*node);
}

}  // namespace detail

ModuleScope::ModuleScope(std::string_view name) {
  const auto outer = detail::innermost_path();
  detail::open_paths().push_back(
      outer.empty() ? std::string(name) : outer + "." + std::string(name));
  detail::note_path();
}

ModuleScope::~ModuleScope() {
  detail::open_paths().pop_back();
  detail::note_path();
}

void name_parameter(const at::Tensor& parameter, std::string name) {
  auto& all = detail::path_memory();
  const std::lock_guard lock(all.mutex);
  if (all.users > 0) {
    all.parameters[parameter.unsafeGetTensorImpl()] = std::move(name);
  }
}

}  // namespace tessera
