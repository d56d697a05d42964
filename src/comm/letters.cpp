#include "comm/letters.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <thread>

namespace tessera::detail {

namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kLetters = 512;
constexpr size_t kLine = 64;
// A writer that has died wakes nobody: readers look after it this often.
constexpr milliseconds kPatience{50};

struct Front {
  alignas(kLine) std::atomic<uint32_t> closed;
};

// From one rank to another, on one lane: a ring.
struct Box {
  alignas(kLine) std::atomic<uint32_t> sent;  // how many so far
  std::atomic<uint32_t> sleeps;               // whether the reader does
  alignas(kLine) std::atomic<uint32_t> taken;
  alignas(kLine) Letter letters[kLetters];
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

constexpr size_t kFrontAt = SharedRange::kReserved;
constexpr size_t kBoxesAt = kFrontAt + sizeof(Front);

Front& front(const SharedRange& range) {
  return *reinterpret_cast<Front*>(range.data() + kFrontAt);
}

Box& box(const SharedRange& range, int64_t reader, int lanes, int lane) {
  return reinterpret_cast<Box*>(range.data() + kBoxesAt)[reader * lanes + lane];
}

void wake(std::atomic<uint32_t>& word) {
  syscall(
      SYS_futex,
      reinterpret_cast<uint32_t*>(&word),
      FUTEX_WAKE,
      1,
      nullptr,
      nullptr,
      0);
}

// Sleeps while the word is `value`, at most so long.
void sleep_on(
    std::atomic<uint32_t>& word, uint32_t value, nanoseconds at_most) {
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(at_most.count() / 1'000'000'000);
  limit.tv_nsec = static_cast<int64_t>(at_most.count() % 1'000'000'000);
  syscall(
      SYS_futex,
      reinterpret_cast<uint32_t*>(&word),
      FUTEX_WAIT,
      value,
      &limit,
      nullptr,
      0);
}

}  // namespace

std::unique_ptr<SentLetters> SentLetters::create(int64_t ranks, int lanes) {
  auto range = SharedRange::create(
      kBoxesAt + static_cast<size_t>(ranks * lanes) * sizeof(Box));
  if (!range) return nullptr;
  return std::unique_ptr<SentLetters>(
      new SentLetters(std::move(range), ranks, lanes));
}

SentLetters::SentLetters(
    std::unique_ptr<SharedRange> range, int64_t ranks, int lanes)
    : range_(std::move(range)), ranks_(ranks), lanes_(lanes) {}

SentLetters::~SentLetters() {
  front(*range_).closed.store(1);
  for (int64_t reader = 0; reader < ranks_; ++reader) {
    for (int lane = 0; lane < lanes_; ++lane) {
      wake(box(*range_, reader, lanes_, lane).sent);
    }
  }
}

bool SentLetters::post(
    int64_t to, int lane, const Letter& letter, Deadline deadline) {
  Box& mine = box(*range_, to, lanes_, lane);
  const uint32_t number = mine.sent.load(std::memory_order_relaxed);
  while (number - mine.taken.load(std::memory_order_acquire) == kLetters) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  mine.letters[number % kLetters] = letter;
  // Before `sleeps` is read: a reader says that it sleeps, then looks at `sent`
  // once more.
  mine.sent.store(number + 1, std::memory_order_seq_cst);
  if (mine.sleeps.load(std::memory_order_seq_cst) != 0) wake(mine.sent);
  return true;
}

std::unique_ptr<ReceivedLetters> ReceivedLetters::open(
    const std::string& name, int64_t self, int lanes) {
  auto range = SharedRange::open(name);
  if (!range) return nullptr;
  const auto process =
      static_cast<int>(syscall(SYS_pidfd_open, range->process(), 0));
  return std::unique_ptr<ReceivedLetters>(
      new ReceivedLetters(std::move(range), self, lanes, process));
}

ReceivedLetters::ReceivedLetters(
    std::unique_ptr<SharedRange> range, int64_t self, int lanes, int process)
    : range_(std::move(range)), self_(self), lanes_(lanes), process_(process) {}

ReceivedLetters::~ReceivedLetters() {
  if (process_ >= 0) close(process_);
}

bool ReceivedLetters::other_has_gone() const {
  if (front(*range_).closed.load() != 0) return true;
  pollfd ended{process_, POLLIN, 0};
  return process_ >= 0 && poll(&ended, 1, 0) > 0;
}

ReceivedLetters::Arrival ReceivedLetters::wait(int lane, Deadline deadline) {
  Box& ours = box(*range_, self_, lanes_, lane);
  const uint32_t taken = ours.taken.load(std::memory_order_relaxed);
  const auto came = [&] {
    return ours.sent.load(std::memory_order_seq_cst) != taken;
  };
  if (came()) return Arrival::Came;
  ours.sleeps.store(1, std::memory_order_seq_cst);
  auto arrival = Arrival::Came;
  while (!came()) {
    const auto left = deadline - Clock::now();
    if (left <= nanoseconds(0)) {
      arrival = Arrival::Late;
      break;
    }
    sleep_on(
        ours.sent, taken, std::min<nanoseconds>(left, nanoseconds(kPatience)));
    // What it sent before it went is still read.
    if (!came() && other_has_gone() && !came()) {
      arrival = Arrival::Gone;
      break;
    }
  }
  ours.sleeps.store(0, std::memory_order_relaxed);
  return arrival;
}

Letter ReceivedLetters::take(int lane) {
  Box& ours = box(*range_, self_, lanes_, lane);
  const uint32_t taken = ours.taken.load(std::memory_order_relaxed);
  const Letter letter = ours.letters[taken % kLetters];
  ours.taken.store(taken + 1, std::memory_order_release);
  return letter;
}

}  // namespace tessera::detail
