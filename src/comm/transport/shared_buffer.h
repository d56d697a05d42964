// The contents of messages between processes of one machine: each process has
// one buffer for all that it sends, which the others map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport/shared_range.h"

namespace tessera::detail {

// How much a process shares: TESSERA_SHARED_MEMORY, in MiB, or 64 MiB; 0 is
// none. Throws c10::ValueError for other texts.
size_t shared_memory_bytes();

// What this process sends. All groups share one; its methods may be called from
// any thread.
class SharedBuffer {
 public:
  // The process's own, of shared_memory_bytes(). Null where that is none, or
  // cannot be had. Lives as long as somebody holds it.
  static std::shared_ptr<SharedBuffer> of_this_process();

  explicit SharedBuffer(std::unique_ptr<SharedRange> range);

  const std::string& name() const { return range_->name(); }
  // Larger contents are put in pieces, so that a few of them always fit and
  // readers begin before the last is written.
  size_t piece_bytes() const { return piece_bytes_; }

  // Copies a piece in for so many readers and returns its place; nothing if
  // there is no room now. It stays until each reader has released it. Never
  // waits. Requires: bytes <= piece_bytes().
  std::optional<int64_t> put(const void* data, size_t bytes, int32_t readers);
  // In place of a reader that will not do so.
  void release(int64_t place);

 private:
  struct Piece {
    size_t begin;
    size_t end;
  };
  // Makes room in pieces_ and returns where it begins.
  std::optional<size_t> find_room(size_t bytes);

  std::mutex mutex_;
  const std::unique_ptr<SharedRange> range_;
  const size_t piece_bytes_;
  std::vector<Piece> pieces_;  // in use, or not yet seen to be free; by place
};

// Another process of this machine: its buffer, and whether it still runs. There
// is one for each process, however many groups it shares with this one. Safe to
// use from any thread.
class PeerProcess {
 public:
  // By the name of its buffer. Null where that cannot be reached.
  static std::shared_ptr<PeerProcess> open(const std::string& buffer_name);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Copies a piece out and releases it. False if there can be none.
  bool take(int64_t place, void* into, size_t bytes) const;
  // Does nothing if there can be none.
  void release(int64_t place) const;
  bool running() const;

 private:
  PeerProcess(std::unique_ptr<SharedRange> range, int process);
  // Whether a piece of so many bytes may be there.
  bool holds(int64_t place, size_t bytes) const;

  const std::unique_ptr<SharedRange> range_;
  const int process_;  // as a file; -1: unknown
};

}  // namespace tessera::detail
