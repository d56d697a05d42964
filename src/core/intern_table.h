// An InternTable keeps one shared object for each value, for as long as anyone
// holds it: two values are equal exactly when their pointers are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace tessera::detail {

// Thread-safe. A table must outlive every object it made, those in static
// variables included: make it with `new` and never delete it.
template <class T>
class InternTable {
 public:
  using Ptr = std::shared_ptr<const T>;

  // The object whose hash is `hash` and for which equal(const T&) holds;
  // otherwise the one that make(), which returns a std::unique_ptr<const T>,
  // builds. Allocates nothing when the object is found. `equal` runs under a
  // lock and must not release any interned object; `make` runs without one.
  template <class Equal, class Make>
  Ptr find_or_make(uint64_t hash, Equal&& equal, Make&& make) {
    Shard& shard = shard_of(hash);
    {
      const std::lock_guard lock(shard.mutex);
      if (Ptr found = find(shard, hash, equal)) {
        return found;
      }
    }
    // Declared before the lock: if another thread was quicker, ours goes away
    // after the lock is released, for Release takes it too.
    Ptr made(make().release(), Release{this, hash});
    const std::lock_guard lock(shard.mutex);
    if (Ptr found = find(shard, hash, equal)) {
      return found;
    }
    shard.entries.emplace(hash, Entry{made.get(), made});
    return made;
  }

  // How many objects are alive.
  size_t size() const {
    size_t total = 0;
    for (const Shard& shard : shards_) {
      const std::lock_guard lock(shard.mutex);
      total += shard.entries.size();
    }
    return total;
  }

 private:
  struct Entry {
    // Readable under the lock even when `weak` has expired: Release takes the
    // entry out before it deletes the object.
    const T* object;
    std::weak_ptr<const T> weak;
  };

  // The keys are hashes already.
  struct Identity {
    size_t operator()(uint64_t hash) const noexcept { return hash; }
  };

  // On a cache line of its own, so that threads on different shards do not
  // slow each other down.
  struct alignas(64) Shard {
    mutable std::mutex mutex;
    // Several entries may share a hash: true collisions, and a value made anew
    // while its last object, already expired, waits for the lock in Release.
    std::unordered_multimap<uint64_t, Entry, Identity> entries;
  };

  struct Release {
    InternTable* table;
    uint64_t hash;

    void operator()(const T* object) const {
      table->erase(hash, object);
      // Outside the lock: the object may hold others of this table.
      delete object;
    }
  };

  static constexpr size_t kShardBits = 4;

  // The top bits; the buckets of a shard take the others.
  Shard& shard_of(uint64_t hash) { return shards_[hash >> (64 - kShardBits)]; }

  template <class Equal>
  static Ptr find(Shard& shard, uint64_t hash, Equal&& equal) {
    auto [it, end] = shard.entries.equal_range(hash);
    for (; it != end; ++it) {
      if (!equal(*it->second.object)) {
        continue;
      }
      // An expired object is not brought back: its deletion is under way.
      if (Ptr alive = it->second.weak.lock()) {
        return alive;
      }
    }
    return nullptr;
  }

  void erase(uint64_t hash, const T* object) {
    Shard& shard = shard_of(hash);
    const std::lock_guard lock(shard.mutex);
    auto [it, end] = shard.entries.equal_range(hash);
    for (; it != end; ++it) {
      if (it->second.object == object) {
        shard.entries.erase(it);
        return;
      }
    }
  }

  std::array<Shard, size_t{1} << kShardBits> shards_;
};

}  // namespace tessera::detail
