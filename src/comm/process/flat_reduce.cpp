#include "comm/process/flat_reduce.h"

#include <algorithm>

#include "comm/process/messages.h"
#include "comm/reduce.h"
#include "comm/result_memory.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using Pieces = c10::SmallVector<at::Tensor, 8>;

// How many blocks of terms may be on their way to a rank at once.
constexpr int64_t kSlots = 2;

int64_t block_length(const ReduceSizes& sizes, const at::Tensor& flat) {
  return std::max<int64_t>(
      1, sizes.block_bytes / static_cast<int64_t>(flat.element_size()));
}

at::Tensor block_of(const at::Tensor& flat, int64_t block, int64_t length) {
  const int64_t begin = block * length;
  return flat.narrow(0, begin, std::min(length, flat.numel() - begin));
}

int64_t count_blocks(const at::Tensor& flat, int64_t length) {
  return (flat.numel() + length - 1) / length;
}

// Reduces this rank's piece block by block, as the terms of the others come.
// Small buffers that are used again stay in the caches, and are not paid for
// page by page as a buffer for all terms would be.
//
// A rank sends the terms of block b only when it has done its own block b - 2,
// so that no more than two blocks are on their way to any rank. From one rank
// to another go terms 0, terms 1, result 0, terms 2, result 1, and so on: a
// result depends on terms that were sent before it, by everyone, so that nobody
// waits in a circle.
class BlockReduction {
 public:
  // With `results`, where everyone gets everyone's results: an all_reduce.
  BlockReduction(
      const FlatReduction& how,
      c10::ArrayRef<at::Tensor> pieces,
      c10::ArrayRef<at::Tensor> results,
      const at::Tensor& out)
      : messages_(how.group, how.call),
        op_(how.op),
        n_(how.group.size()),
        me_(how.group.coordinate()),
        length_(block_length(how.sizes, out)),
        blocks_(count_blocks(out, length_)),
        slots_(std::min(kSlots, blocks_)),
        pieces_(pieces),
        results_(results),
        out_(out),
        memory_(empty_result(
            {slots_, n_ - 1, blocks_ > 1 ? length_ : out.numel()},
            out.options())),
        arriving_(slots_ * n_) {}

  void run() {
    int64_t most = 0;
    for (const auto& piece : pieces_) {
      most = std::max(most, count_blocks(piece, length_));
    }
    for (int64_t block = 0; block < kSlots; ++block) {
      receive_terms(block);
      send_terms(block);
    }
    receive_results(0);
    Pieces terms(n_);
    for (int64_t block = 0; block < most; ++block) {
      if (block < blocks_) {
        wait_for_terms(block, terms);
        const auto done = block_of(out_, block, length_);
        reduce_into(done, terms, op_);
        if (!results_.empty()) messages_.send_to_all(done);
      }
      receive_terms(block + kSlots);
      receive_results(block + 1);
      send_terms(block + kSlots);
    }
    messages_.finish();
  }

 private:
  at::Tensor slot(int64_t block, int64_t c) const {
    const int64_t size = std::min(length_, out_.numel() - block * length_);
    const int64_t row = c < me_ ? c : c - 1;
    return memory_.select(0, block % slots_).select(0, row).narrow(0, 0, size);
  }

  void receive_terms(int64_t block) {
    if (block >= blocks_) return;
    for (int64_t step = 1; step < n_; ++step) {
      const int64_t c = (me_ + n_ - step) % n_;
      arriving_[block % slots_ * n_ + c] = messages_.receive(c, slot(block, c));
    }
  }

  void send_terms(int64_t block) {
    for (int64_t step = 1; step < n_; ++step) {
      const int64_t c = (me_ + step) % n_;
      if (block >= count_blocks(pieces_[c], length_)) continue;
      messages_.send(c, block_of(pieces_[c], block, length_));
    }
  }

  void receive_results(int64_t block) {
    if (results_.empty()) return;
    for (int64_t step = 1; step < n_; ++step) {
      const int64_t c = (me_ + n_ - step) % n_;
      if (block >= count_blocks(results_[c], length_)) continue;
      messages_.receive(c, block_of(results_[c], block, length_));
    }
  }

  void wait_for_terms(int64_t block, Pieces& terms) {
    for (int64_t c = 0; c < n_; ++c) {
      if (c == me_) {
        terms[c] = block_of(pieces_[me_], block, length_);
      } else {
        messages_.wait(arriving_[block % slots_ * n_ + c]);
        terms[c] = slot(block, c);
      }
    }
  }

  Messages messages_;
  const ReduceOp op_;
  const int64_t n_;
  const int64_t me_;
  const int64_t length_;  // of a block, in elements
  const int64_t blocks_;  // of this rank's piece
  const int64_t slots_;
  const c10::ArrayRef<at::Tensor> pieces_;
  const c10::ArrayRef<at::Tensor> results_;
  const at::Tensor out_;
  const at::Tensor memory_;  // of terms: slots x other ranks x elements
  // What is on its way, n for each slot.
  c10::SmallVector<Messages::Receipt, 16> arriving_;
};

// Everything to everyone: one trip, n times the work. For what is small.
void gather_and_reduce(
    const FlatReduction& how, const at::Tensor& in, const at::Tensor& out) {
  const int64_t n = how.group.size();
  const int64_t me = how.group.coordinate();
  Messages messages(how.group, how.call);
  const at::Tensor memory = empty_result({n, in.numel()}, in.options());
  Pieces terms(n);
  for (int64_t c = 0; c < n; ++c) {
    terms[c] = c == me ? in : memory.select(0, c);
    if (c != me) messages.receive(c, terms[c]);
  }
  messages.send_to_all(in);
  messages.finish();
  reduce_into(out, terms, how.op);
}

}  // namespace

void FlatReduction::reduce_scatter(
    c10::ArrayRef<at::Tensor> pieces, const at::Tensor& out) const {
  BlockReduction(*this, pieces, {}, out).run();
}

void FlatReduction::all_reduce(
    const at::Tensor& in, const at::Tensor& out) const {
  if (static_cast<int64_t>(in.nbytes()) <= sizes.small_bytes) {
    gather_and_reduce(*this, in, out);
    return;
  }
  Pieces pieces;
  Pieces results;
  for (int64_t c = 0; c < group.size(); ++c) {
    const auto [begin, size] = chunk(in.numel(), group.size(), c);
    pieces.push_back(in.narrow(0, begin, size));
    results.push_back(out.narrow(0, begin, size));
  }
  BlockReduction(*this, pieces, results, results[group.coordinate()]).run();
}

}  // namespace tessera::detail
