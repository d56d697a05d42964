// A hook around waiting for other ranks: for programs that hold a lock which
// others need meanwhile. The Python package lets go of the interpreter lock.
#pragma once

#include "tessera/export.h"

namespace tessera {

struct BlockingHooks {
  // Called in the thread that is about to wait. The result is passed to leave.
  void* (*enter)();
  // Called in the same thread when it has waited.
  void (*leave)(void* entered);
};

// Sets the hooks of this process; both functions must be callable until it
// ends. Not while other threads communicate.
TESSERA_API void set_blocking_hooks(BlockingHooks hooks);

}  // namespace tessera
