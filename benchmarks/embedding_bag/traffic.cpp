#include "embedding_bag/traffic.h"

#include <set>

namespace tessera::bench {

namespace {

constexpr int64_t kRequestBytes = 72;
constexpr int64_t kIndexBytes = 4;    // fewer rows than an int32 counts
constexpr int64_t kElementBytes = 4;  // float
constexpr int64_t kArgmaxBytes = 1;   // bags of at most 255 entries

struct Asked {
  int64_t pairs = 0;    // of a bag and an owner
  int64_t entries = 0;  // of bags
  int64_t rows = 0;     // different ones
};

int64_t ranks_of(const BagBatch& batch) {
  return static_cast<int64_t>(batch.indices.size());
}

int64_t requests(const BagBatch& batch) {
  return kRequestBytes * (ranks_of(batch) - 1);
}

// What one rank asks of one other.
Asked asks(const BagBatch& batch, int64_t rank, int64_t owner) {
  const int64_t held = batch.size.rows / ranks_of(batch);
  const auto* next = batch.indices[rank].const_data_ptr<int64_t>();
  Asked sum;
  std::set<int64_t> rows;
  for (int64_t bag = 0; bag < batch.size.bags; ++bag) {
    int64_t entries = 0;
    for (int64_t i = 0; i < batch.size.entries; ++i, ++next) {
      if (*next / held == owner) {
        ++entries;
        rows.insert(*next);
      }
    }
    sum.entries += entries;
    sum.pairs += entries > 0 ? 1 : 0;
  }
  sum.rows = static_cast<int64_t>(rows.size());
  return sum;
}

struct Exchange {
  Asked asks;   // this rank of all others
  Asked asked;  // all others of this rank
};

void add(Asked& sum, const Asked& one) {
  sum.pairs += one.pairs;
  sum.entries += one.entries;
  sum.rows += one.rows;
}

Exchange exchange(const BagBatch& batch) {
  Exchange sum;
  for (int64_t other = 0; other < ranks_of(batch); ++other) {
    if (other != batch.rank) {
      add(sum.asks, asks(batch, batch.rank, other));
      add(sum.asked, asks(batch, other, batch.rank));
    }
  }
  return sum;
}

}  // namespace

BagTraffic pooled_traffic(const BagBatch& batch, const std::string& mode) {
  const auto sum = exchange(batch);
  const int64_t result =
      kElementBytes + (mode == "max" ? kArgmaxBytes : int64_t{0});
  return {
      requests(batch) + kIndexBytes * (sum.asks.pairs + sum.asks.entries) +
          result * batch.size.columns * sum.asked.pairs,
      kElementBytes * batch.size.columns * sum.asks.pairs};
}

BagTraffic rows_traffic(const BagBatch& batch) {
  const auto sum = exchange(batch);
  const int64_t row = kElementBytes * batch.size.columns;
  return {
      requests(batch) + kIndexBytes * sum.asks.rows + row * sum.asked.rows,
      row * sum.asks.rows};
}

BagTraffic gather_traffic(const BagBatch& batch, const std::string& mode) {
  const int64_t others = ranks_of(batch) - 1;
  const int64_t entries = batch.size.bags * batch.size.entries;
  const int64_t bags = kElementBytes * batch.size.columns * batch.size.bags;
  // Maxima and argmax, an all_reduce each, or one reduce_scatter.
  const int64_t results = mode == "max" ? 4 * bags : bags;
  return {
      others * (static_cast<int64_t>(sizeof(int64_t)) * entries + results),
      others * bags};
}

BagTraffic columns_traffic(const BagBatch& batch) {
  const int64_t others = ranks_of(batch) - 1;
  const auto& size = batch.size;
  const int64_t held = size.columns / ranks_of(batch);
  return {
      requests(batch) + others * kIndexBytes * size.bags * (1 + size.entries) +
          kElementBytes * held * others * size.bags,
      kElementBytes * (size.columns - held) * size.bags};
}

}  // namespace tessera::bench
