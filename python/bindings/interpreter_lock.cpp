// Other Python threads run while this one waits for other ranks. Most of
// torch's functions let go of the interpreter lock by themselves, but not x[0].
#include <torch/csrc/utils/pybind.h>

#include "tessera/blocking.h"

namespace tessera::python {

namespace {

// Null where this thread does not hold the lock.
void* release_lock() {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return nullptr;
  return PyEval_SaveThread();
}

void take_lock(void* released) {
  if (released != nullptr) {
    PyEval_RestoreThread(static_cast<PyThreadState*>(released));
  }
}

}  // namespace

void release_lock_while_waiting();

void release_lock_while_waiting() {
  set_blocking_hooks({&release_lock, &take_lock});
}

}  // namespace tessera::python
