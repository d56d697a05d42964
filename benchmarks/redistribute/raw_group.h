// c10d's Gloo group as it is: what a program without this library would call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace tessera::bench {

// Each call waits until its work is done. All of them communicate; tensors are
// contiguous. Buffers are the caller's, so that no allocation is measured.
class RawGroup {
 public:
  // Meets the other ranks at torchrun's store (RANK, WORLD_SIZE, MASTER_ADDR,
  // MASTER_PORT).
  RawGroup();
  ~RawGroup();

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // out = the ranks' `in`, one after the other.
  void all_gather(at::Tensor& out, const at::Tensor& in);
  // The same, by the collective that takes a list of tensors.
  void all_gather_list(at::Tensor& out, const at::Tensor& in);
  void all_reduce(at::Tensor& tensor);
  void reduce_scatter(at::Tensor& out, const at::Tensor& in);
  // Piece r of `in` goes to rank r; both are cut evenly along dim 0.
  void all_to_all(at::Tensor& out, const at::Tensor& in);
  void barrier();
  // The greatest of the ranks' values.
  double max(double value);

 private:
  struct Backend;
  int64_t rank_;
  int64_t size_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace tessera::bench
