// Memory that a thread has freed and will want again. Ops make and free a few
// small objects a tensor, always of the same sizes: a list of what was freed
// last is nearer than the allocator.
#pragma once

#include <c10/macros/Macros.h>

#include <array>
#include <cstddef>
#include <new>

namespace tessera::detail {

// The T of the thread that asks.
template <typename T>
class OfThisThread {
 public:
  // nullptr once the thread has ended its variables: tensors may outlive them.
  static T* get() {
    auto& [value, ended] = known_;
    if (C10_UNLIKELY(value == nullptr && !ended)) {
      thread_local OfThisThread own;
      value = &own.value_;
    }
    return value;
  }

 private:
  // Both in one variable: finding a variable of a thread is a call.
  struct Known {
    T* value;
    bool ended;
  };

  OfThisThread() = default;
  ~OfThisThread() { known_ = {nullptr, true}; }
  C10_DISABLE_COPY_AND_ASSIGN(OfThisThread);

  T value_;
  static inline thread_local Known known_ = {nullptr, false};
};

// At most this many objects of a kind are kept by each thread. Few are enough:
// ops free about as many tensors as they make.
inline constexpr size_t kRecycled = 32;

// What this thread has kept in a T; nullptr where nothing is to be kept. Under
// the address sanitizer nothing is, so that it sees each object on its own.
template <typename T>
T* recycled() {
#if defined(__SANITIZE_ADDRESS__)
  return nullptr;
#else
  return OfThisThread<T>::get();
#endif
}

// Blocks of kSize bytes.
template <size_t kSize>
class RecycledBlocks {
 public:
  static void* allocate() {
    auto* kept = recycled<Kept>();
    return kept == nullptr || kept->count == 0 ? ::operator new(kSize)
                                               : kept->blocks[--kept->count];
  }

  static void free(void* block) {
    auto* kept = recycled<Kept>();
    if (kept == nullptr || kept->count == kRecycled) {
      ::operator delete(block);
    } else {
      kept->blocks[kept->count++] = block;
    }
  }

 private:
  struct Kept {
    ~Kept() {
      while (count > 0) {
        ::operator delete(blocks[--count]);
      }
    }
    std::array<void*, kRecycled> blocks;
    size_t count = 0;
  };
};

}  // namespace tessera::detail
