// Random numbers that ranks share. Nothing is sent when they are drawn, so that
// ranks whose generators differ would hold different replicas in silence: every
// later message of the group says what its sender has drawn.
#pragma once

#include <cstdint>

#include "comm/collectives.h"

namespace tessera::detail {

// This rank has drawn `bits` for numbers that all ranks of the group must hold
// alike. A later collective of a group that does not agree throws c10::Error
// on its ranks. Sends nothing; in a simulated world there is nothing to do.
// Requires: a rank of the mesh lives here.
void note_drawn(MeshDim at, uint64_t bits);

}  // namespace tessera::detail
