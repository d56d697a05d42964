#include "comm/shared_memory.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <string_view>

namespace tessera::detail {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kDefaultMegabytes = 64;

// What a range begins with: a number nobody else's has. A name may lead to
// another file, where process numbers are those of another container.
struct RangeHead {
  uint64_t mark;
};

// What a message begins with.
struct MessageHead {
  std::atomic<int32_t> holders;
};
static_assert(std::atomic<int32_t>::is_always_lock_free);

static_assert(sizeof(RangeHead) <= SharedRange::kReserved);
constexpr size_t kFirstPlace = SharedRange::kReserved;
constexpr size_t kHeadBytes = kLine;

size_t whole_lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

MessageHead& head_at(const SharedRange& range, size_t place) {
  return *reinterpret_cast<MessageHead*>(range.data() + place);
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

bool SharedRange::map(size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) return false;
  data_ = static_cast<char*>(memory);
  bytes_ = bytes;
  return true;
}

std::unique_ptr<SharedRange> SharedRange::create(size_t bytes) {
  std::unique_ptr<SharedRange> range(new SharedRange);
  range->file_ = memfd_create("tessera", MFD_CLOEXEC);
  if (range->file_ < 0 ||
      ftruncate(range->file_, static_cast<off_t>(bytes)) != 0 ||
      !range->map(bytes)) {
    return nullptr;
  }
  std::random_device random;
  const uint64_t mark = static_cast<uint64_t>(random()) << 32 | random();
  reinterpret_cast<RangeHead*>(range->data_)->mark = mark;
  std::ostringstream name;
  range->process_ = getpid();
  name << range->process_ << " " << range->file_ << " " << bytes << " " << mark;
  range->name_ = name.str();
  return range;
}

std::unique_ptr<SharedRange> SharedRange::open(const std::string& name) {
  std::istringstream text(name);
  int64_t process = 0;
  int file = -1;
  size_t bytes = 0;
  uint64_t mark = 0;
  if (!(text >> process >> file >> bytes >> mark)) {
    return nullptr;
  }
  std::unique_ptr<SharedRange> range(new SharedRange);
  const std::string path =
      "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  range->file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  if (range->file_ < 0 || fstat(range->file_, &status) != 0 ||
      status.st_size != static_cast<off_t>(bytes) || !range->map(bytes)) {
    return nullptr;
  }
  range->name_ = name;
  range->process_ = process;
  const bool same =
      reinterpret_cast<const RangeHead*>(range->data_)->mark == mark;
  return same ? std::move(range) : nullptr;
}

SharedRange::~SharedRange() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (file_ >= 0) close(file_);
}

std::shared_ptr<Outbox> Outbox::of_this_process() {
  static std::mutex mutex;
  static std::weak_ptr<Outbox> current;
  const std::lock_guard lock(mutex);
  auto outbox = current.lock();
  if (!outbox) {
    const size_t bytes = shared_memory_bytes();
    auto range = bytes == 0 ? nullptr : SharedRange::create(bytes);
    if (!range) return nullptr;
    outbox = std::make_shared<Outbox>(std::move(range));
    current = outbox;
  }
  return outbox;
}

Outbox::Outbox(std::unique_ptr<SharedRange> range)
    : range_(std::move(range)), next_(kFirstPlace) {}

// Messages lie in a ring, from laid_.front() to next_.
std::optional<size_t> Outbox::find_room(size_t bytes) {
  const auto is_free = [&](size_t place) {
    return head_at(*range_, place).holders.load(std::memory_order_acquire) == 0;
  };
  while (!laid_.empty() && is_free(laid_.front())) {
    laid_.pop_front();
  }
  const size_t end = range_->bytes();
  if (laid_.empty()) {
    // From the start again: that memory is still in the caches.
    next_ = kFirstPlace;
    return end - next_ >= bytes ? std::optional(next_) : std::nullopt;
  }
  const size_t first = laid_.front();
  if (next_ > first) {
    if (end - next_ >= bytes) return next_;
    next_ = kFirstPlace;
  }
  // A full ring would look like an empty one.
  return first - next_ > bytes ? std::optional(next_) : std::nullopt;
}

std::optional<int64_t> Outbox::lay(const void* message, size_t bytes) {
  size_t place = 0;
  {
    const std::lock_guard lock(mutex_);
    const size_t size = kHeadBytes + whole_lines(bytes);
    const auto room = find_room(size);
    if (!room) return std::nullopt;
    place = *room;
    next_ = place + size;
    laid_.push_back(place);
    new (&head_at(*range_, place)) MessageHead{1};
  }
  std::memcpy(range_->data() + place + kHeadBytes, message, bytes);
  return static_cast<int64_t>(place);
}

void Outbox::hold(int64_t place) {
  head_at(*range_, place).holders.fetch_add(1, std::memory_order_relaxed);
}

void Outbox::let_go(int64_t place) {
  head_at(*range_, place).holders.fetch_sub(1, std::memory_order_release);
}

std::unique_ptr<Inbox> Inbox::open(const std::string& outbox_name) {
  auto range = SharedRange::open(outbox_name);
  return range ? std::unique_ptr<Inbox>(new Inbox(std::move(range))) : nullptr;
}

Inbox::Inbox(std::unique_ptr<SharedRange> range) : range_(std::move(range)) {}

void Inbox::take(int64_t place, void* into, size_t bytes) const {
  TORCH_INTERNAL_ASSERT(
      place >= static_cast<int64_t>(kFirstPlace) &&
      static_cast<size_t>(place) + kHeadBytes + bytes <= range_->bytes());
  std::memcpy(into, range_->data() + place + kHeadBytes, bytes);
  head_at(*range_, place).holders.fetch_sub(1, std::memory_order_release);
}

}  // namespace tessera::detail
