#include "embedding/traffic.h"

#include <set>

namespace tessera::bench {

namespace {

constexpr int64_t kCountBytes = 8;
constexpr int64_t kSentIndexBytes = 4;  // fewer rows than an int32 counts

// How many distinct rows of `owner` the indices of `rank` name.
int64_t wants(const Batch& batch, int64_t rank, int64_t owner) {
  const int64_t part = batch.indices.numel() / batch.ranks;
  const int64_t held = batch.rows / batch.ranks;
  const auto* data = batch.indices.const_data_ptr<int64_t>() + rank * part;
  std::set<int64_t> distinct;
  for (int64_t i = 0; i < part; ++i) {
    if (data[i] / held == owner) {
      distinct.insert(data[i]);
    }
  }
  return static_cast<int64_t>(distinct.size());
}

}  // namespace

Traffic gather_traffic(const Batch& batch) {
  const int64_t part = batch.indices.numel() / batch.ranks;
  const int64_t others = batch.ranks - 1;
  const auto index_bytes = static_cast<int64_t>(batch.indices.element_size());
  return {
      others * part * (index_bytes + batch.row_bytes),
      others * part * batch.row_bytes};
}

Traffic exchange_traffic(const Batch& batch) {
  int64_t wanted = 0;
  int64_t asked = 0;
  for (int64_t other = 0; other < batch.ranks; ++other) {
    if (other != batch.rank) {
      wanted += wants(batch, batch.rank, other);
      asked += wants(batch, other, batch.rank);
    }
  }
  return {
      (batch.ranks - 1) * kCountBytes + wanted * kSentIndexBytes +
          asked * batch.row_bytes,
      wanted * batch.row_bytes};
}

}  // namespace tessera::bench
