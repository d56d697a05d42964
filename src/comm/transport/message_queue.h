// What has been started and is not done, in order. Keeps its memory: a group
// uses its queues again at each collective.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace tessera::detail {

template <typename T>
class MessageQueue {
 public:
  bool empty() const { return first_ == items_.size(); }
  T& front() { return items_[first_]; }
  const T& front() const { return items_[first_]; }
  void push(T item) { items_.push_back(std::move(item)); }
  void pop() {
    if (++first_ < items_.size()) return;
    items_.clear();
    first_ = 0;
  }

 private:
  std::vector<T> items_;
  size_t first_ = 0;
};

}  // namespace tessera::detail
