#include "api/checkpoint/read_boxes.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
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

void verify(
    const Source& source,
    const ReadTask& task,
    int64_t chunk,
    const char* data,
    int64_t bytes) {
  const auto found = checksum(data, bytes);
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

// Bytes [from, to) of a task's piece, a chunk: straight into place if it is
// one, otherwise from the page cache, or through the buffer where that cannot
// be.
void run_chunk(
    const Source& source,
    const ReadTask& task,
    int64_t from,
    int64_t to,
    bool verified,
    std::string& buffer) {
  const int64_t chunk = from / kChunkBytes;
  const int64_t offset = task.piece->offset + from;
  const int64_t bytes = to - from;
  const auto& name = task.target->name;
  const auto read = [&](char* into) {
    source.read(task.piece->file, offset, into, bytes, name);
    if (verified) verify(source, task, chunk, into, bytes);
  };
  if (char* const place = task.copy.place_of(from, to)) {
    read(place);
    return;
  }
  const FileWindow window(source.file(task.piece->file, name), offset, bytes);
  if (window.data() != nullptr) {
    if (verified) verify(source, task, chunk, window.data(), bytes);
    task.copy.copy(window.data(), from, to);
    return;
  }
  buffer.resize(kChunkBytes);
  read(buffer.data());
  task.copy.copy(buffer.data(), from, to);
}

void run_task(const Source& source, const ReadTask& task, std::string& buffer) {
  const int64_t piece_bytes =
      task.piece->box.numel() * task.target->saved->item_bytes();
  const bool checked = !task.piece->checksums.empty();
  for (int64_t c = task.first_chunk; c < task.last_chunk; ++c) {
    int64_t from = c * kChunkBytes;
    int64_t to = std::min(from + kChunkBytes, piece_bytes);
    if (!checked) {
      from = std::max(from, task.copy.begin());
      to = std::min(to, task.copy.end());
    }
    if (!task.copy.touches(from, to)) continue;
    const bool verified = checked && task.verifiers->here(c, from, to);
    run_chunk(source, task, from, to, verified, buffer);
  }
}

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
        run_task(source, tasks[i], buffer);
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
  try {
    for (size_t i = 1; i < count; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads to be had: those that there are do it all.
  }
  work();
  for (auto& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace tessera::detail
