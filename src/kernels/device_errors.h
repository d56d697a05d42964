// Bad indices that kernels on a GPU have met. Such a kernel does not stop the
// host to say so: it leaves a record, and whoever passes by here raises it.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::detail {

// Where the devices leave word that there is a record; nullptr until the first
// kernel that may. Nonzero is news.
extern std::atomic<const volatile int32_t*> device_error_flag;

// Throws the error of the records, and forgets them.
void raise_recorded_errors();

// Throws c10::IndexError or c10::ValueError if a kernel that has run by now met
// bad indices or offsets; costs two reads of host memory if none did. Does not
// wait for kernels that have not run yet.
inline void raise_device_errors() {
  const volatile int32_t* const flag =
      device_error_flag.load(std::memory_order_acquire);
  if (flag != nullptr && *flag != 0) [[unlikely]] {
    raise_recorded_errors();
  }
}

}  // namespace tessera::detail
