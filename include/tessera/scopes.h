// Scopes that say how much ops may do by themselves. They hold for all threads
// of the process, so that a backward pass is held to them too.
#pragma once

#include "tessera/export.h"

namespace tessera {

// An op without a sharding rule runs on gathered inputs and says so once. While
// a Strict is alive it throws c10::NotImplementedError instead, before anything
// is sent. Scopes nest; TESSERA_STRICT=1 in the environment is one around the
// whole program.
class TESSERA_API Strict {
 public:
  Strict();
  ~Strict();
  Strict(const Strict&) = delete;
  Strict& operator=(const Strict&) = delete;
};

}  // namespace tessera
