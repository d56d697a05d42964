// What must be over before a world ends.
#pragma once

namespace tessera::detail {

// `hook` is called at the end of every World, before its connections close. For
// hooks that last as long as the process.
void at_world_end(void (*hook)());
void run_world_end_hooks();

}  // namespace tessera::detail
