// Saves in the background, one at a time.
#pragma once

#include "api/checkpoint/save_job.h"

namespace tessera::detail {

// Waits for the save of this process that is under way, if any. Throws what
// went wrong with it, unless it has been thrown before.
void finish_pending_save();

// Runs the job in a thread. Requires: none is under way.
PendingSave start_save(SaveJob job);

}  // namespace tessera::detail
