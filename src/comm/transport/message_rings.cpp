#include "comm/transport/message_rings.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <ctime>

namespace tessera::detail {

namespace {

constexpr uint32_t kEntries = 128;
constexpr size_t kErrorBytes = 1024;

}  // namespace

struct MessageRings::Head {
  alignas(kCacheLine) std::atomic<uint32_t> state;
  std::atomic<uint32_t> alerted;
  std::array<char, kErrorBytes> error;
  // Of the owner: what it waits for, and how often it was woken.
  alignas(kCacheLine) std::atomic<uint32_t> sleeps;
  std::atomic<uint32_t> woken;
  alignas(kCacheLine) std::atomic<uint32_t> pieces;
};

struct MessageRings::Ring {
  alignas(kCacheLine) std::atomic<uint32_t> sent;  // how many so far
  std::atomic<uint32_t> revoked;
  alignas(kCacheLine) std::atomic<uint32_t> taken;
  alignas(kCacheLine) RingEntry entries[kEntries];
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(RingEntry) == kCacheLine);

std::unique_ptr<MessageRings> MessageRings::create(int64_t ranks) {
  auto range = SharedRange::create(
      SharedRange::kReserved + sizeof(Head) +
      static_cast<size_t>(ranks) * sizeof(Ring));
  if (!range) return nullptr;
  return std::unique_ptr<MessageRings>(new MessageRings(std::move(range)));
}

std::unique_ptr<MessageRings> MessageRings::open(
    const std::string& name, int64_t ranks) {
  auto range = SharedRange::open(name);
  if (!range ||
      range->bytes() != SharedRange::kReserved + sizeof(Head) +
                            static_cast<size_t>(ranks) * sizeof(Ring)) {
    return nullptr;
  }
  return std::unique_ptr<MessageRings>(new MessageRings(std::move(range)));
}

MessageRings::MessageRings(std::unique_ptr<SharedRange> range)
    : range_(std::move(range)) {}

MessageRings::Head& MessageRings::head() const {
  return *reinterpret_cast<Head*>(range_->data() + SharedRange::kReserved);
}

MessageRings::Ring& MessageRings::ring(int64_t reader) const {
  return reinterpret_cast<Ring*>(
      range_->data() + SharedRange::kReserved + sizeof(Head))[reader];
}

bool MessageRings::has_room(int64_t reader) const {
  const Ring& to = ring(reader);
  return to.sent.load(std::memory_order_relaxed) -
             to.taken.load(std::memory_order_acquire) <
         kEntries;
}

void MessageRings::push(int64_t reader, const RingEntry& entry) {
  Ring& to = ring(reader);
  const uint32_t number = to.sent.load(std::memory_order_relaxed);
  to.entries[number % kEntries] = entry;
  // Before wake() reads whether the reader sleeps: a reader says so, then looks
  // at `sent` once more.
  to.sent.store(number + 1, std::memory_order_seq_cst);
}

// The reader takes an entry, then looks whether it was revoked; the owner
// revokes, then looks what was taken. So one of the two sees the other.
std::vector<int64_t> MessageRings::revoke(int64_t reader) {
  Ring& to = ring(reader);
  to.revoked.store(1, std::memory_order_seq_cst);
  std::vector<int64_t> places;
  const uint32_t sent = to.sent.load(std::memory_order_relaxed);
  for (uint32_t at = to.taken.load(std::memory_order_seq_cst); at != sent;
       ++at) {
    const auto& entry = to.entries[at % kEntries];
    if (entry.place >= 0) places.push_back(entry.place);
  }
  return places;
}

void MessageRings::set_state(State state, const std::string& error) {
  auto& text = head().error;
  const size_t length = std::min(error.size(), text.size() - 1);
  std::memcpy(text.data(), error.data(), length);
  text[length] = '\0';
  head().state.store(static_cast<uint32_t>(state), std::memory_order_seq_cst);
}

void MessageRings::note_piece() {
  auto& pieces = head().pieces;
  pieces.store(
      pieces.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

uint32_t MessageRings::pieces() const {
  return head().pieces.load(std::memory_order_relaxed);
}

bool MessageRings::has_entry(int64_t reader) const {
  const Ring& from = ring(reader);
  return from.sent.load(std::memory_order_seq_cst) !=
         from.taken.load(std::memory_order_relaxed);
}

bool MessageRings::pop(int64_t reader, RingEntry& entry) {
  Ring& from = ring(reader);
  const uint32_t number = from.taken.load(std::memory_order_relaxed);
  entry = from.entries[number % kEntries];
  from.taken.store(number + 1, std::memory_order_seq_cst);
  return entry.place == RingEntry::kInline ||
         from.revoked.load(std::memory_order_seq_cst) == 0;
}

MessageRings::State MessageRings::state() const {
  return static_cast<State>(head().state.load(std::memory_order_seq_cst));
}

std::string MessageRings::error() const {
  const auto& text = head().error;
  return {text.data(), strnlen(text.data(), text.size())};
}

uint32_t MessageRings::prepare_sleep(Sleep what) {
  const uint32_t woken = head().woken.load(std::memory_order_seq_cst);
  head().sleeps.store(static_cast<uint32_t>(what), std::memory_order_seq_cst);
  return woken;
}

void MessageRings::sleep(uint32_t prepared, std::chrono::nanoseconds at_most) {
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(at_most.count() / 1'000'000'000);
  limit.tv_nsec = static_cast<int64_t>(at_most.count() % 1'000'000'000);
  syscall(
      SYS_futex,
      reinterpret_cast<uint32_t*>(&head().woken),
      FUTEX_WAIT,
      prepared,
      &limit,
      nullptr,
      0);
}

void MessageRings::end_sleep() {
  head().sleeps.store(0, std::memory_order_relaxed);
}

void MessageRings::wake(Sleep least) {
  auto& owner = head();
  if (owner.sleeps.load(std::memory_order_seq_cst) <
      static_cast<uint32_t>(least)) {
    return;
  }
  owner.woken.fetch_add(1, std::memory_order_seq_cst);
  syscall(
      SYS_futex,
      reinterpret_cast<uint32_t*>(&owner.woken),
      FUTEX_WAKE,
      INT_MAX,
      nullptr,
      nullptr,
      0);
}

void MessageRings::alert() {
  head().alerted.store(1, std::memory_order_seq_cst);
  wake(Sleep::Awake);
}

bool MessageRings::alerted() const {
  return head().alerted.load(std::memory_order_relaxed) != 0;
}

}  // namespace tessera::detail
