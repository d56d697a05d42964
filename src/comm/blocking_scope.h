// Between the two hooks of tessera/blocking.h.
#pragma once

#include <c10/macros/Macros.h>

namespace tessera::detail {

class BlockingScope {
 public:
  BlockingScope();
  ~BlockingScope();
  C10_DISABLE_COPY_AND_ASSIGN(BlockingScope);

 private:
  void* entered_ = nullptr;
};

}  // namespace tessera::detail
