#include "comm/flat_reduce.h"

#include <algorithm>

#include "comm/reduce.h"
#include "comm/result_memory.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using Pieces = c10::SmallVector<at::Tensor, 8>;

// Terms and results travel on lanes of their own: a result may overtake the
// terms of a later block.
constexpr int kTerms = 0;
constexpr int kResults = 1;
// How many blocks of terms may be on their way to a rank at once.
constexpr int64_t kSlots = 2;

at::Tensor block_of(const at::Tensor& flat, int64_t block, int64_t length) {
  const int64_t begin = block * length;
  return flat.narrow(0, begin, std::min(length, flat.numel() - begin));
}

int64_t count_blocks(const at::Tensor& flat, int64_t length) {
  return (flat.numel() + length - 1) / length;
}

// Streams the terms of this rank's piece through a few blocks of memory and
// calls done(block) when a block of `out` is reduced. Small buffers that are
// used again stay in the caches, and are not paid for page by page as a buffer
// for all terms would be.
template <typename Done>
void stream_terms(
    Exchange& exchange,
    Group& group,
    c10::ArrayRef<at::Tensor> pieces,
    const at::Tensor& out,
    ReduceOp op,
    Done done) {
  const int64_t n = group.size();
  const int64_t me = group.coordinate();
  const int64_t length = std::max<int64_t>(
      1, group.traits().block_bytes / static_cast<int64_t>(out.element_size()));
  const int64_t blocks = count_blocks(out, length);
  const int64_t slots = std::min(kSlots, blocks);
  const at::Tensor memory = empty_result(
      {slots, n - 1, blocks > 1 ? length : out.numel()}, out.options());
  const auto slot = [&](int64_t block, int64_t c) {
    const int64_t size = std::min(length, out.numel() - block * length);
    const int64_t row = c < me ? c : c - 1;
    return memory.select(0, block % slots).select(0, row).narrow(0, 0, size);
  };

  // Message numbers of the blocks on their way, n for each slot.
  c10::SmallVector<size_t, 32> arriving(slots * n);
  const auto receive = [&](int64_t block) {
    for (int64_t step = 1; step < n; ++step) {
      const int64_t c = (me + n - step) % n;
      arriving[block % slots * n + c] =
          exchange.receive(c, slot(block, c), kTerms);
    }
  };
  for (int64_t block = 0; block < slots; ++block) receive(block);

  int64_t most = 0;
  for (const auto& piece : pieces) {
    most = std::max(most, count_blocks(piece, length));
  }
  for (int64_t block = 0; block < most; ++block) {
    for (int64_t step = 1; step < n; ++step) {
      const int64_t c = (me + step) % n;
      if (block >= count_blocks(pieces[c], length)) continue;
      exchange.send(c, block_of(pieces[c], block, length), kTerms);
    }
  }

  Pieces terms(n);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t c = 0; c < n; ++c) {
      if (c == me) {
        terms[c] = block_of(pieces[me], block, length);
      } else {
        exchange.wait(arriving[block % slots * n + c]);
        terms[c] = slot(block, c);
      }
    }
    reduce_into(block_of(out, block, length), terms, op);
    if (block + slots < blocks) receive(block + slots);
    done(block, length);
  }
}

// Everything to everyone: one trip, n times the work. For what is small.
void gather_and_reduce(
    Group& group,
    const Call& call,
    const at::Tensor& in,
    const at::Tensor& out,
    ReduceOp op) {
  const int64_t n = group.size();
  const int64_t me = group.coordinate();
  Exchange exchange(group, call);
  const at::Tensor memory = empty_result({n, in.numel()}, in.options());
  Pieces terms(n);
  for (int64_t step = 1; step < n; ++step) {
    const int64_t c = (me + n - step) % n;
    terms[c] = memory.select(0, c);
    exchange.receive(c, terms[c]);
  }
  terms[me] = in;
  for (int64_t step = 1; step < n; ++step) exchange.send((me + step) % n, in);
  exchange.finish();
  reduce_into(out, terms, op);
}

}  // namespace

void flat_reduce_scatter(
    Group& group,
    const Call& call,
    c10::ArrayRef<at::Tensor> pieces,
    const at::Tensor& out,
    ReduceOp op) {
  Exchange exchange(group, call);
  stream_terms(exchange, group, pieces, out, op, [](int64_t, int64_t) {});
  exchange.finish();
}

void flat_all_reduce(
    Group& group,
    const Call& call,
    const at::Tensor& in,
    const at::Tensor& out,
    ReduceOp op) {
  if (static_cast<int64_t>(in.nbytes()) <= group.traits().small_bytes) {
    gather_and_reduce(group, call, in, out, op);
    return;
  }
  const int64_t n = group.size();
  const int64_t me = group.coordinate();
  Pieces pieces;
  Pieces results;
  for (int64_t c = 0; c < n; ++c) {
    const auto [begin, size] = chunk(in.numel(), n, c);
    pieces.push_back(in.narrow(0, begin, size));
    results.push_back(out.narrow(0, begin, size));
  }
  Exchange exchange(group, call);
  const int64_t length = std::max<int64_t>(
      1, group.traits().block_bytes / static_cast<int64_t>(in.element_size()));
  for (int64_t step = 1; step < n; ++step) {
    const int64_t c = (me + n - step) % n;
    const int64_t blocks = count_blocks(results[c], length);
    for (int64_t block = 0; block < blocks; ++block) {
      exchange.receive(c, block_of(results[c], block, length), kResults);
    }
  }
  stream_terms(
      exchange,
      group,
      pieces,
      results[me],
      op,
      [&](int64_t block, int64_t block_length) {
        const auto ready = block_of(results[me], block, block_length);
        for (int64_t step = 1; step < n; ++step) {
          exchange.send((me + step) % n, ready, kResults);
        }
      });
  exchange.finish();
}

}  // namespace tessera::detail
