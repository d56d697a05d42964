#include "comm/result_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "core/leaked.h"

namespace tessera::detail {

namespace {

// Below this malloc keeps its blocks by itself.
constexpr size_t kLarge = size_t{1} << 20;

struct Block {
  c10::DataPtr data;
  size_t bytes;
};

struct Pool {
  std::mutex mutex;
  // The block that was left last is at the end.
  std::deque<Block> idle;
  size_t idle_bytes = 0;
};

// Never deleted: a tensor in a static variable may be freed after us.
Pool& pool() { return leaked<Pool>(); }

// A block of `bytes`, or a little more; an idle one if there is one.
std::unique_ptr<Block> take(size_t bytes) {
  {
    auto& all = pool();
    const std::lock_guard lock(all.mutex);
    for (auto it = all.idle.rbegin(); it != all.idle.rend(); ++it) {
      if (it->bytes < bytes || it->bytes > bytes + bytes / 4) continue;
      auto block = std::make_unique<Block>(std::move(*it));
      all.idle.erase(std::next(it).base());
      all.idle_bytes -= block->bytes;
      return block;
    }
  }
  return std::make_unique<Block>(
      Block{c10::GetCPUAllocator()->allocate(bytes), bytes});
}

// The deleter of a result's storage.
void leave(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  if (block->bytes > kIdleResultBytes) return;
  // Freed after the lock is.
  std::deque<Block> oldest;
  auto& all = pool();
  const std::lock_guard lock(all.mutex);
  while (all.idle_bytes + block->bytes > kIdleResultBytes) {
    all.idle_bytes -= all.idle.front().bytes;
    oldest.push_back(std::move(all.idle.front()));
    all.idle.pop_front();
  }
  all.idle_bytes += block->bytes;
  all.idle.push_back(std::move(*block));
}

}  // namespace

at::Tensor empty_result(c10::IntArrayRef sizes, const at::TensorOptions& like) {
  size_t bytes = like.dtype().itemsize();
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  if (!like.device().is_cpu() || bytes < kLarge) return at::empty(sizes, like);
  auto block = take(bytes);
  void* data = block->data.get();
  c10::Storage storage(
      c10::Storage::use_byte_size_t(),
      bytes,
      c10::DataPtr(data, block.release(), &leave, c10::Device(at::kCPU)),
      c10::GetCPUAllocator(),
      /*resizable=*/true);
  // An empty tensor that is then given the storage: what ATen's own factories
  // set up (dispatch keys, inference mode) stays theirs.
  at::Tensor out = at::empty({0}, like);
  out.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  out.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return out;
}

size_t idle_result_bytes() {
  auto& all = pool();
  const std::lock_guard lock(all.mutex);
  return all.idle_bytes;
}

}  // namespace tessera::detail
