#include "api/checkpoint/read_boxes.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/strided_copy.h"

namespace tessera::detail {

namespace {

// Chunks of one piece, on their way to one target.
struct ReadTask {
  const BoxTarget* target;
  const Piece* piece;
  StridedCopy copy;
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
      const int64_t end = (copy.end() + kChunkBytes - 1) / kChunkBytes;
      for (int64_t c = copy.begin() / kChunkBytes; c < end;
           c += kChunksPerTask) {
        tasks.push_back(
            {&target, &piece, copy, c, std::min(c + kChunksPerTask, end)});
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
    char* const place = task.copy.place_of(from, to);
    if (place == nullptr) buffer.resize(kChunkBytes);
    char* const into = place != nullptr ? place : buffer.data();
    source.read(
        task.piece->file,
        task.piece->offset + from,
        into,
        to - from,
        task.target->name);
    if (checked) verify(source, task, c, into, to - from);
    if (place == nullptr) task.copy.copy(into, from, to);
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
