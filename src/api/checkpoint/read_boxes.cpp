#include "api/checkpoint/read_boxes.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/file_window.h"
#include "api/checkpoint/strided_copy.h"

namespace tessera::detail {

namespace {

// Which of those that load a tensor together verifies a chunk of a piece.
class Verifiers {
 public:
  Verifiers(const BoxTarget& target, const Piece& piece) {
    for (size_t i = 0; i < target.shared.size(); ++i) {
      const auto& box = target.shared[i];
      if (intersection(piece.box, box).numel() == 0) continue;
      if (i == target.self) self_ = copies_.size();
      copies_.emplace_back(
          piece.box, box, target.saved->item_bytes(), target.memory);
    }
  }

  // Whether the one here does: of those that read bytes [from, to), the turn is
  // everybody's, chunk after chunk.
  bool here(int64_t chunk, int64_t from, int64_t to) const {
    if (copies_.size() < 2) return true;
    int64_t readers = 0;
    int64_t mine = 0;
    for (size_t i = 0; i < copies_.size(); ++i) {
      if (i == self_) mine = readers;
      readers += copies_[i].touches(from, to) ? 1 : 0;
    }
    return chunk % readers == mine;
  }

 private:
  std::vector<StridedCopy> copies_;
  size_t self_ = 0;
};

// Chunks of one piece, on their way to one target.
struct ReadTask {
  const BoxTarget* target;
  const Piece* piece;
  StridedCopy copy;
  std::shared_ptr<const Verifiers> verifiers;
  int64_t first_chunk;
  int64_t last_chunk;  // + 1
};

constexpr int64_t kChunksPerTask = 16;

std::vector<ReadTask> tasks_of(const std::vector<BoxTarget>& targets) {
  std::vector<ReadTask> tasks;
  for (const auto& target : targets) {
    if (target.box.numel() == 0) continue;
    const int64_t item = target.saved->item_bytes();
    for (const auto& piece : target.saved->pieces) {
      if (intersection(piece.box, target.box).numel() == 0) continue;
      const StridedCopy copy(piece.box, target.box, item, target.memory);
      const auto verifiers = std::make_shared<const Verifiers>(target, piece);
      const int64_t end = (copy.end() + kChunkBytes - 1) / kChunkBytes;
      for (int64_t c = copy.begin() / kChunkBytes; c < end;
           c += kChunksPerTask) {
        tasks.push_back(
            {&target,
             &piece,
             copy,
             verifiers,
             c,
             std::min(c + kChunksPerTask, end)});
      }
    }
  }
  return tasks;
}

void check_sum(
    const Source& source,
    const ReadTask& task,
    int64_t chunk,
    uint64_t found,
    int64_t bytes) {
  TORCH_CHECK(
      found == task.piece->checksums[chunk],
      "[load] ",
      source.file_path(task.piece->file),
      " is damaged: bytes ",
      task.piece->offset + chunk * kChunkBytes,
      " to ",
      task.piece->offset + chunk * kChunkBytes + bytes,
      ", which hold a part of tensor '",
      task.target->name,
      "', have the checksum ",
      hex16(found),
      " but ",
      hex16(task.piece->checksums[chunk]),
      " was written");
}

// Runs one task. A chunk goes straight into place if that is one; of others the
// bytes are taken from the page cache, or from a buffer where it cannot be
// mapped.
class TaskRun {
 public:
  TaskRun(const Source& source, const ReadTask& task, std::string& buffer)
      : source_(source),
        task_(task),
        buffer_(buffer),
        piece_bytes_(
            task.piece->box.numel() * task.target->saved->item_bytes()),
        checked_(!task.piece->checksums.empty()) {}

  void run() {
    for (int64_t c = task_.first_chunk; c < task_.last_chunk; ++c) {
      const auto range = range_of(c);
      if (!touched(range)) continue;
      const int64_t bytes = range.to - range.from;
      const bool verified =
          checked_ && task_.verifiers->here(c, range.from, range.to);
      uint64_t sum = 0;
      if (char* const place = task_.copy.place_of(range.from, range.to)) {
        read(range, place);
        if (verified) sum = checksum(place, bytes);
      } else {
        const auto take = [&](const char* data) {
          if (verified) sum = checksum(data, bytes);
          task_.copy.copy(data, range.from, range.to);
        };
        const auto& window = window_of(c, range);
        const int64_t from = range.from - window_range_.from;
        if (!window.take(from, from + bytes, take)) {
          buffer_.resize(kChunkBytes);
          read(range, buffer_.data());
          take(buffer_.data());
        }
      }
      if (verified) check_sum(source_, task_, c, sum, bytes);
    }
  }

 private:
  // Bytes of the piece.
  struct Range {
    int64_t from;
    int64_t to;
  };

  Range range_of(int64_t chunk) const {
    const int64_t from = chunk * kChunkBytes;
    const int64_t to = std::min(from + kChunkBytes, piece_bytes_);
    if (checked_) return {from, to};
    return {std::max(from, task_.copy.begin()), std::min(to, task_.copy.end())};
  }
  bool touched(const Range& range) const {
    return task_.copy.touches(range.from, range.to);
  }
  void read(const Range& range, char* into) const {
    source_.read(
        task_.piece->file,
        task_.piece->offset + range.from,
        into,
        range.to - range.from,
        task_.target->name);
  }

  // One that holds the chunk, and goes on to the last chunk of the task before
  // one that is not needed.
  const FileWindow& window_of(int64_t chunk, const Range& range) {
    if (!window_ || range.to > window_range_.to) {
      window_range_ = range;
      for (int64_t c = chunk + 1; c < task_.last_chunk; ++c) {
        const auto next = range_of(c);
        if (!touched(next)) break;
        window_range_.to = next.to;
      }
      window_.emplace(
          source_.file(task_.piece->file, task_.target->name),
          task_.piece->offset + window_range_.from,
          window_range_.to - window_range_.from);
    }
    return *window_;
  }

  const Source& source_;
  const ReadTask& task_;
  std::string& buffer_;
  const int64_t piece_bytes_;
  const bool checked_;
  std::optional<FileWindow> window_;
  Range window_range_{0, 0};
};

}  // namespace

void read_boxes(const Source& source, const std::vector<BoxTarget>& targets) {
  const auto tasks = tasks_of(targets);
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    std::string buffer;
    while (true) {
      const size_t i = next++;
      if (i >= tasks.size()) return;
      try {
        TaskRun(source, tasks[i], buffer).run();
      } catch (...) {
        next = tasks.size();
        const std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  };
  const size_t count =
      std::min<size_t>(tasks.size(), std::max(1, at::get_num_threads()));
  std::vector<std::thread> threads;
  while (threads.size() + 1 < count) {
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // no more are to be had: those that there are do it all
    }
  }
  work();
  for (auto& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace tessera::detail
