// A row-wise table as tensor-parallel training codes write it: mask the foreign
// indices, look all of them up, mask the foreign rows, reduce. Plain tensors
// over c10d, with torch's autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "redistribute/raw_group.h"

namespace tessera::bench {

class HandWritten {
 public:
  // `shard` holds the rows from `first` on; it is made a leaf with gradient.
  HandWritten(RawGroup& group, const at::Tensor& shard, int64_t first);

  // The rows of replicated indices, zeros for those of others. With autograd
  // where that is on. Does not communicate.
  at::Tensor rows(const at::Tensor& indices, bool sparse) const;

  // Their sum over the ranks, whole or this rank's part. Communicates; outside
  // autograd.
  at::Tensor full(const at::Tensor& rows) const;
  at::Tensor part(const at::Tensor& rows) const;

  // Every rank's indices or gradients, one after the other. Communicates.
  at::Tensor gathered(const at::Tensor& part) const;

  // The gradient that `grad` gives, dense or sparse; it is taken away.
  at::Tensor gradient(const at::Tensor& rows, const at::Tensor& grad) const;

 private:
  RawGroup& group_;
  at::Tensor weight_;
  int64_t first_;
  int64_t end_;
};

}  // namespace tessera::bench
