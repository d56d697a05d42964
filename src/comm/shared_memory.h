// Memory that processes of one machine share, in which messages lie until they
// are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace tessera::detail {

// A range of memory that other processes can map.
class SharedRange {
 public:
  // The first bytes of a range are not for use.
  static constexpr size_t kReserved = 64;

  // Null where the system gives no such memory.
  static std::unique_ptr<SharedRange> create(size_t bytes);
  // Maps another process's by its name. Null where that cannot be reached, as
  // on another machine or in another container.
  static std::unique_ptr<SharedRange> open(const std::string& name);
  ~SharedRange();
  SharedRange(const SharedRange&) = delete;
  SharedRange& operator=(const SharedRange&) = delete;

  // By which processes of this machine open it.
  const std::string& name() const { return name_; }
  // Whose it is.
  int64_t process() const { return process_; }
  // All zeros at first, but for what is reserved.
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  SharedRange() = default;
  // Makes `bytes` bytes of the file memory. False if that cannot be.
  bool map(size_t bytes);

  std::string name_;
  int64_t process_ = 0;
  char* data_ = nullptr;
  size_t bytes_ = 0;
  int file_ = -1;
};

// How much a process shares: TESSERA_SHARED_MEMORY, in MiB, or 64 MiB; 0 is
// none. Throws c10::ValueError for other texts.
size_t shared_memory_bytes();

// What this process has to say to others. All groups share one; its methods may
// be called from any thread.
class Outbox {
 public:
  // The process's own, of shared_memory_bytes(). Null where that is none, or
  // cannot be had. Lives as long as somebody holds it.
  static std::shared_ptr<Outbox> of_this_process();

  explicit Outbox(std::unique_ptr<SharedRange> range);

  const std::string& name() const { return range_->name(); }

  // Copies a message in and returns its place; nothing if there is no room for
  // it now. It stays until it has been let go of, once for this call and once
  // for each hold(). Never waits.
  std::optional<int64_t> lay(const void* message, size_t bytes);
  // One more has to let go: a reader, which does so from its own process.
  void hold(int64_t place);
  void let_go(int64_t place);

 private:
  std::optional<size_t> find_room(size_t bytes);

  std::mutex mutex_;
  const std::unique_ptr<SharedRange> range_;
  std::deque<size_t> laid_;  // places, in the order in which they were laid
  size_t next_;              // where the next message goes, if there is room
};

// Another process's outbox.
class Inbox {
 public:
  // Null where it cannot be reached.
  static std::unique_ptr<Inbox> open(const std::string& outbox_name);

  // Copies the message out that lies at `place`, and lets go of it.
  void take(int64_t place, void* into, size_t bytes) const;

 private:
  explicit Inbox(std::unique_ptr<SharedRange> range);

  const std::unique_ptr<SharedRange> range_;
};

}  // namespace tessera::detail
