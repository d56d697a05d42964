// The store where the ranks of a job meet. Another program may have the port:
// a store says which job it serves, so that nobody joins another job, and where
// the port was made up, there are others to choose from.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "comm/deadline.h"
#include "comm/process/environment.h"

namespace tessera::detail {

// The store of the launch's job. Rank 0 serves it unless the launcher does, at
// the first of the launch's ports that is free, for as long as the process
// lives: a rank that comes early for the next world must not find the last
// one's store. The others wait for it until the deadline. Throws c10::Error,
// also where what listens there does not answer. For one thread at a time.
c10::intrusive_ptr<c10d::Store> open_job_store(
    const Launch& launch, Deadline until);

}  // namespace tessera::detail
