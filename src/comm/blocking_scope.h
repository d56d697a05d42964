// Between the two hooks of tessera/blocking.h.
#pragma once

namespace tessera::detail {

class BlockingScope {
 public:
  BlockingScope();
  ~BlockingScope();
  BlockingScope(const BlockingScope&) = delete;
  BlockingScope& operator=(const BlockingScope&) = delete;

 private:
  void* entered_ = nullptr;
};

}  // namespace tessera::detail
