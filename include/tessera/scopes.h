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

// An op redistributes its arguments as it needs them. While an
// ExplicitCommunication is alive it throws c10::Error instead, before anything
// is sent, and names the op, the argument, the steps and the bytes: every
// collective is one that the program wrote (redistribute, full_tensor, ...).
// A lookup that would exchange indices for rows counts too; sharded::embedding,
// which is there for the exchange, is one that the program wrote. Slices of
// what a rank has already are no communication. The gradient of a leaf still
// comes in the leaf's layout: that reduction is backward's own. Scopes nest.
class TESSERA_API ExplicitCommunication {
 public:
  ExplicitCommunication();
  ~ExplicitCommunication();
  ExplicitCommunication(const ExplicitCommunication&) = delete;
  ExplicitCommunication& operator=(const ExplicitCommunication&) = delete;
};

}  // namespace tessera
