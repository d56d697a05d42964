// Where the ranks of a world tell each other of long waits. Ranks that wait for
// each other in different groups send each other nothing that could be wrong:
// without this, only the timeout finds them.
//
// A wait of tens of milliseconds is put into the world's store and renewed
// there by a thread of its own, which also reads what the awaited ranks have
// put. Shorter waits cost nothing.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::detail {

// The calls that this rank has made in a group.
struct BoardGroup {
  std::string name;  // the same on all of its ranks
  std::atomic<uint32_t> count = 0;
  std::atomic<uint64_t> thread = 0;  // of the last call
};

class WaitBoard {
 public:
  // A wait that lasts so long is told.
  static constexpr std::chrono::milliseconds kLong{16};
  // How often one who waits should ask for its verdict.
  static constexpr std::chrono::milliseconds kAsk{6};

  // `store` is that of the world.
  WaitBoard(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size);
  ~WaitBoard();
  WaitBoard(const WaitBoard&) = delete;
  WaitBoard& operator=(const WaitBoard&) = delete;

  // The group of this name; without calls. Lives as long as the board.
  BoardGroup& join(const std::string& group);
  // Begins a call and returns its number, from 1. Each group is used by one
  // thread at a time.
  uint32_t begin_call(BoardGroup& group) {
    const uint32_t number = group.count.load(std::memory_order_relaxed) + 1;
    group.count.store(number, std::memory_order_relaxed);
    if (group.thread.load(std::memory_order_relaxed) != this_thread() ||
        failed_.load(std::memory_order_relaxed)) {
      note_call(group);
    }
    return number;
  }
  // A collective of the group has failed on this rank. Those who wait for it
  // are told, unless it makes another call on the device type.
  void fail(const BoardGroup& group, const std::string& error);

  // Why a wait cannot end, and the rank because of which.
  struct Verdict {
    int64_t rank;
    std::string cause;
    bool failed;  // the cause is that rank's error
  };

  // A long wait, from here to the end of its scope.
  class LongWait {
   public:
    LongWait(
        WaitBoard& board,
        const BoardGroup& group,
        uint32_t call,
        const char* collective,
        std::vector<int64_t> awaited);
    ~LongWait();
    LongWait(const LongWait&) = delete;
    LongWait& operator=(const LongWait&) = delete;

    // Nothing: it may still end. Does not wait.
    std::optional<Verdict> verdict() const;

   private:
    WaitBoard& board_;
    uint64_t number_;
  };

 private:
  struct State;
  // Unlike that of any other thread of the process; never 0.
  static uint64_t this_thread();
  void note_call(BoardGroup& group);

  const std::shared_ptr<State> state_;
  std::atomic<bool> failed_ = false;
};

}  // namespace tessera::detail
