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
    if (C10_UNLIKELY(known_ == nullptr && !ended_)) {
      thread_local OfThisThread own;
      known_ = &own.value_;
    }
    return known_;
  }

 private:
  OfThisThread() = default;
  ~OfThisThread() {
    known_ = nullptr;
    ended_ = true;
  }
  C10_DISABLE_COPY_AND_ASSIGN(OfThisThread);

  T value_;
  static inline thread_local T* known_ = nullptr;
  static inline thread_local bool ended_ = false;
};

// At most this many objects of a kind are kept by each thread. Few are enough:
// ops free about as many tensors as they make.
inline constexpr size_t kRecycled = 32;

// Blocks of kSize bytes. Under the address sanitizer none is kept, so that it
// sees each object on its own.
template <size_t kSize>
class RecycledBlocks {
 public:
  static void* allocate() {
    auto* kept = here();
    return kept == nullptr || kept->count == 0 ? ::operator new(kSize)
                                               : kept->blocks[--kept->count];
  }

  static void free(void* block) {
    auto* kept = here();
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

  static Kept* here() {
#if defined(__SANITIZE_ADDRESS__)
    return nullptr;
#else
    return OfThisThread<Kept>::get();
#endif
  }
};

}  // namespace tessera::detail
