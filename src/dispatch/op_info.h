// What the boxed kernel knows of an op before it is called, read once from its
// schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "tessera/rule.h"

namespace tessera::detail {

enum class ArgKind : uint8_t {
  Tensor,      // a tensor or an optional one
  TensorList,  // a list of tensors or of optional ones
  Number,      // a Scalar or a float
  Unread,      // a generator: no part of a layout depends on it
  Plain,       // anything else
};

// How a result of the op relates to its arguments.
struct ReturnInfo {
  enum class Kind : uint8_t { Fresh, View, Written, NotATensor };
  Kind kind = Kind::Fresh;
  bool is_list = false;
  // The argument viewed or written (its index in the schema); -1 for none.
  int32_t argument = -1;
};

struct OpInfo {
  explicit OpInfo(const c10::OperatorHandle& op);

  c10::OperatorHandle handle;
  std::string name;          // aten::add.Tensor
  std::string display_name;  // aten.add.Tensor
  c10::SmallVector<ArgKind, 8> args;
  c10::SmallVector<bool, 8> written_args;
  c10::SmallVector<ReturnInfo, 2> returns;
  bool writes = false;   // some argument is written
  bool is_view = false;  // some result aliases an argument unwritten
  bool returns_list = false;
  bool only_writes = false;  // every result is a written argument

  // The op's rule: its own, or the pointwise one if ATen tags it so; nullptr
  // for none. Found once; until then every call looks, so that a rule may be
  // registered late.
  const Rule* rule() const {
    const Rule* known = rule_.load(std::memory_order_acquire);
    return known != nullptr ? known : find_rule();
  }

 private:
  const Rule* find_rule() const;
  mutable std::atomic<const Rule*> rule_ = nullptr;
};

}  // namespace tessera::detail
