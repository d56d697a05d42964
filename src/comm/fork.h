// Tells a process from the one it was forked from. A child has its parent's
// memory, but neither its threads nor a right to its connections.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::detail {

// How many forks lie between the start of the program and this process.
uint64_t fork_count();

// A value of this process, made at the first use. A forked child gets a new one
// and leaves its parent's alone, which is never destroyed. Any thread may ask.
template <typename T>
class PerProcess {
 public:
  T& get() {
    const uint64_t forks = fork_count();
    Node* node = node_.load(std::memory_order_acquire);
    if (node != nullptr && node->forks == forks) return node->value;
    auto* fresh = new Node{forks, {}};
    if (node_.compare_exchange_strong(node, fresh)) return fresh->value;
    delete fresh;
    return node->value;
  }

 private:
  struct Node {
    uint64_t forks;
    T value;
  };
  std::atomic<Node*> node_{nullptr};
};

}  // namespace tessera::detail
