#include "api/checkpoint/bus_error.h"

#include <csetjmp>
#include <csignal>
#include <mutex>

#include "core/leaked.h"

namespace tessera::detail {

namespace {

// Where the read of this thread goes on; null: it reads nothing.
thread_local sigjmp_buf* volatile escape = nullptr;

// The handler that was there before ours, and how many reads need ours.
std::mutex& handler_mutex() { return leaked<std::mutex>(); }
struct sigaction handler_of_others;
int guarded_reads = 0;

// Not ours to survive.
void pass_on(int number, siginfo_t* info, void* context) {
  const auto& before = handler_of_others;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    // The access is made again, and ends the program. A signal that somebody
    // sent has no access.
    ::sigaction(number, &before, nullptr);
    if (info->si_code <= 0) ::raise(number);
  }
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  sigjmp_buf* const to = escape;
  if (to == nullptr || info->si_code <= 0) {
    pass_on(number, info, context);
    return;
  }
  ::siglongjmp(*to, 1);
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 &&
         action.sa_sigaction == &on_bus_error;
}

class BusErrorHandler {
 public:
  BusErrorHandler() {
    const std::lock_guard<std::mutex> lock(handler_mutex());
    if (guarded_reads++ > 0) return;
    struct sigaction current {};
    ::sigaction(SIGBUS, nullptr, &current);
    if (is_ours(current)) return;
    handler_of_others = current;
    struct sigaction ours {};
    ours.sa_sigaction = &on_bus_error;
    ours.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &ours, nullptr);
  }
  ~BusErrorHandler() {
    const std::lock_guard<std::mutex> lock(handler_mutex());
    if (--guarded_reads > 0) return;
    struct sigaction current {};
    ::sigaction(SIGBUS, nullptr, &current);
    // One that was installed meanwhile stays.
    if (is_ours(current)) ::sigaction(SIGBUS, &handler_of_others, nullptr);
  }
  BusErrorHandler(const BusErrorHandler&) = delete;
  BusErrorHandler& operator=(const BusErrorHandler&) = delete;
};

// A function of its own: nothing in it changes between the two returns of
// sigsetjmp, and nothing has a destructor.
bool read_or_escape(c10::function_ref<void()> read) {
  sigjmp_buf here;
  // With the mask of signals: whoever stands between the kernel and the handler
  // may have blocked some for it, as a sanitizer does.
  if (sigsetjmp(here, 1) != 0) {
    escape = nullptr;
    return false;
  }
  escape = &here;
  read();
  escape = nullptr;
  return true;
}

}  // namespace

bool survives_bus_error(c10::function_ref<void()> read) {
  const BusErrorHandler handler;
  return read_or_escape(read);
}

}  // namespace tessera::detail
