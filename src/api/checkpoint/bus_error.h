// Reads of memory that a file backs, which may go away: where another program
// truncates a mapped file, the kernel takes the pages behind its new end, and
// an access to them is a signal (SIGBUS) that ends the program.
#pragma once

#include <c10/util/FunctionRef.h>

namespace tessera::detail {

// Calls `read` and returns true; returns false, with some of what it does done,
// if it has come upon a page that is gone. `read` is left by a jump then: it
// must own nothing that has a destructor, take no lock and throw nothing. Any
// thread may call it. While a call runs the process has a handler of SIGBUS,
// which hands signals of other threads to the one that was there before.
bool survives_bus_error(c10::function_ref<void()> read);

}  // namespace tessera::detail
