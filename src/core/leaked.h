// Values of the process that are never deleted: objects in static variables may
// still need them when the program ends.
#pragma once

namespace tessera::detail {

// The one T, made at the first use.
template <class T>
T& leaked() {
  static T* const instance = new T;
  return *instance;
}

}  // namespace tessera::detail
