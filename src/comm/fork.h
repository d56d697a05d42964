// Tells a process from the one it was forked from. A child has its parent's
// memory, but neither its threads nor a right to its connections.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::detail {

// How many forks lie between the start of the program and this process.
uint64_t fork_count();

// Closes an open file in the children that are forked from now on. The peers of
// a connection learn of the end of its process only when no child holds it.
void hide_from_children(int file);
// They hold it again.
void show_to_children(int file);
// Closes a file that is hidden; does nothing in a child that was forked since.
void close_hidden(int file);

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
