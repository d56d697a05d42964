#include "dispatch/formula.h"

#include <dlfcn.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <unwind.h>

#include <string_view>
#include <typeinfo>
#include <unordered_map>

namespace tessera::detail {

namespace {

using torch::autograd::Node;

// The nodes of users are of types of their own: CppNode and PyNode for
// Functions, AccumulateGrad for leaves, inside which post-accumulate hooks run.
bool is_built_in(const Node& node) {
  const std::string_view type = typeid(node).name();
  if (type.starts_with("N5torch8autograd9generated") ||
      type.find("7tessera6detail") != std::string_view::npos ||
      typeid(node) == typeid(torch::autograd::CopyBackwards)) {
    return true;
  }
  // A write into a view: the formula of what was written is inside.
  const auto* slices = dynamic_cast<const torch::autograd::CopySlices*>(&node);
  return slices != nullptr &&
         (slices->fn == nullptr || is_built_in(*slices->fn));
}

bool has_hooks(Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() ||
         !node.post_hooks().empty();
}

enum class Frame : uint8_t { Formula, Engine, Other };

Frame frame_at(void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_sname == nullptr) {
    return Frame::Other;
  }
  const std::string_view name = info.dli_sname;
  return name.starts_with("_ZN5torch8autograd9generated") ? Frame::Formula
         : name.starts_with("_ZN5torch8autograd6Engine")  ? Frame::Engine
                                                          : Frame::Other;
}

_Unwind_Reason_Code visit(_Unwind_Context* context, void* nearest) {
  // Looking an address up takes long, and few come here.
  thread_local std::unordered_map<void*, Frame> known;
  // A return address; the call is before it.
  auto* const address = reinterpret_cast<char*>(_Unwind_GetIP(context)) - 1;
  auto found = known.find(address);
  if (found == known.end()) {
    found = known.emplace(address, frame_at(address)).first;
  }
  if (found->second == Frame::Other) {
    return _URC_NO_REASON;
  }
  *static_cast<Frame*>(nearest) = found->second;
  return _URC_END_OF_STACK;
}

// The engine calls a node's hooks and its formula alike; nothing but the stack
// tells which of them is running.
bool called_from_formula() {
  Frame nearest = Frame::Other;
  _Unwind_Backtrace(&visit, &nearest);
  return nearest == Frame::Formula;
}

}  // namespace

bool in_derivative_formula() {
  const auto node = torch::autograd::get_current_node();
  return node != nullptr && is_built_in(*node) &&
         (!has_hooks(*node) || called_from_formula());
}

}  // namespace tessera::detail
