#include "comm/blocking_scope.h"

#include "tessera/blocking.h"

namespace tessera {

namespace detail {

namespace {

BlockingHooks hooks{nullptr, nullptr};

}  // namespace

BlockingScope::BlockingScope() {
  if (hooks.enter != nullptr) entered_ = hooks.enter();
}

BlockingScope::~BlockingScope() {
  if (hooks.leave != nullptr) hooks.leave(entered_);
}

}  // namespace detail

void set_blocking_hooks(BlockingHooks hooks) { detail::hooks = hooks; }

}  // namespace tessera
