#include "comm/transport/shared_buffer.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

#include "comm/fork.h"

namespace tessera::detail {

namespace {

constexpr size_t kDefaultMegabytes = 64;
// Pieces of this size keep the copies of both sides busy at once.
constexpr size_t kMostPieceBytes = size_t{1} << 20;

// What a piece begins with.
struct PieceHead {
  std::atomic<int32_t> readers;  // that have not released it yet
};
static_assert(std::atomic<int32_t>::is_always_lock_free);
constexpr size_t kHeadBytes = kCacheLine;

size_t whole_lines(size_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

PieceHead& head_at(const SharedRange& range, size_t place) {
  return *reinterpret_cast<PieceHead*>(range.data() + place);
}

// Buffers that this process has, its own and others', under one lock.
struct Buffers {
  std::mutex mutex;
  std::weak_ptr<SharedBuffer> own;
  std::map<std::string, std::weak_ptr<PeerProcess>> peers;
};

Buffers& buffers() {
  static PerProcess<Buffers> all;
  return all.get();
}

}  // namespace

size_t shared_memory_bytes() {
  size_t megabytes = kDefaultMegabytes;
  if (const char* text = std::getenv("TESSERA_SHARED_MEMORY")) {
    const std::string_view digits(text);
    const auto [end, error] = std::from_chars(
        digits.data(), digits.data() + digits.size(), megabytes);
    TORCH_CHECK_VALUE(
        error == std::errc() && end == digits.data() + digits.size() &&
            megabytes <= (size_t{1} << 20),
        "[World] TESSERA_SHARED_MEMORY is the number of MiB that a process "
        "shares with others of its machine (0: none), not '",
        text,
        "'");
  }
  return megabytes << 20;
}

std::shared_ptr<SharedBuffer> SharedBuffer::of_this_process() {
  const size_t bytes = shared_memory_bytes();
  if (bytes == 0) return nullptr;
  auto& all = buffers();
  const std::lock_guard lock(all.mutex);
  auto buffer = all.own.lock();
  if (!buffer) {
    auto range = SharedRange::create(bytes);
    if (!range) return nullptr;
    buffer = std::make_shared<SharedBuffer>(std::move(range));
    all.own = buffer;
  }
  return buffer;
}

SharedBuffer::SharedBuffer(std::unique_ptr<SharedRange> range)
    : range_(std::move(range)),
      piece_bytes_(std::min(
          kMostPieceBytes, range_->bytes() / 8 / kCacheLine * kCacheLine)) {}

// The lowest gap that fits: memory that was used last is still in the caches.
// Pieces that nobody reads any more are met, and dropped, on the way.
std::optional<size_t> SharedBuffer::find_room(size_t bytes) {
  size_t begin = SharedRange::kReserved;
  size_t at = 0;
  while (at < pieces_.size() && pieces_[at].begin - begin < bytes) {
    const auto& head = head_at(*range_, pieces_[at].begin);
    if (head.readers.load(std::memory_order_acquire) == 0) {
      pieces_.erase(pieces_.begin() + static_cast<int64_t>(at));
    } else {
      begin = pieces_[at].end;
      ++at;
    }
  }
  if (at == pieces_.size() && range_->bytes() - begin < bytes) {
    return std::nullopt;
  }
  pieces_.insert(
      pieces_.begin() + static_cast<int64_t>(at), {begin, begin + bytes});
  return begin;
}

std::optional<int64_t> SharedBuffer::put(
    const void* data, size_t bytes, int32_t readers) {
  TORCH_INTERNAL_ASSERT(bytes <= piece_bytes_);
  std::optional<size_t> place;
  {
    const std::lock_guard lock(mutex_);
    place = find_room(kHeadBytes + whole_lines(bytes));
    if (!place) return std::nullopt;
    new (&head_at(*range_, *place)) PieceHead{readers};
  }
  std::memcpy(range_->data() + *place + kHeadBytes, data, bytes);
  return static_cast<int64_t>(*place);
}

void SharedBuffer::release(int64_t place) {
  head_at(*range_, place).readers.fetch_sub(1, std::memory_order_release);
}

std::shared_ptr<PeerProcess> PeerProcess::open(const std::string& buffer_name) {
  auto& all = buffers();
  const std::lock_guard lock(all.mutex);
  std::erase_if(
      all.peers, [](const auto& item) { return item.second.expired(); });
  auto peer = all.peers[buffer_name].lock();
  if (!peer) {
    auto range = SharedRange::open(buffer_name);
    if (!range) return nullptr;
    const auto process =
        static_cast<int>(syscall(SYS_pidfd_open, range->process(), 0));
    peer.reset(new PeerProcess(std::move(range), process));
    all.peers[buffer_name] = peer;
  }
  return peer;
}

PeerProcess::PeerProcess(std::unique_ptr<SharedRange> range, int process)
    : range_(std::move(range)), process_(process) {}

PeerProcess::~PeerProcess() {
  if (process_ >= 0) close(process_);
}

bool PeerProcess::holds(int64_t place, size_t bytes) const {
  const size_t size = range_->bytes();
  return place >= static_cast<int64_t>(SharedRange::kReserved) &&
         static_cast<size_t>(place) % kCacheLine == 0 &&
         static_cast<size_t>(place) <= size && kHeadBytes <= size - place &&
         bytes <= size - place - kHeadBytes;
}

bool PeerProcess::take(int64_t place, void* into, size_t bytes) const {
  if (!holds(place, bytes)) return false;
  std::memcpy(into, range_->data() + place + kHeadBytes, bytes);
  release(place);
  return true;
}

void PeerProcess::release(int64_t place) const {
  if (!holds(place, 0)) return;
  head_at(*range_, place).readers.fetch_sub(1, std::memory_order_release);
}

bool PeerProcess::running() const {
  pollfd ended{process_, POLLIN, 0};
  return process_ < 0 || poll(&ended, 1, 0) == 0;
}

}  // namespace tessera::detail
