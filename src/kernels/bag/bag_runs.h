// Bags of sums and means, run after run, with what each entry is multiplied and
// each bag divided by.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/bag/bag.h"
#include "kernels/bag/bag_lanes.h"
#include "kernels/bag/bag_reader.h"

namespace tessera::detail {

// One run. Pointers are good until the next one.
template <typename T>
struct BagRun {
  int64_t begin;  // its first bag
  int64_t bags;
  const int64_t* rows;      // Lookahead::kMost more than there are may be read
  const BagAcc<T>* scales;  // one for each row, or nullptr
  const int64_t* ends;      // per bag, in `rows`
  const int64_t* counts;    // what to divide by, or nullptr

  TESSERA_LANES_INLINE int64_t entries() const {
    return bags == 0 ? 0 : ends[bags - 1];
  }
  // Where a bag's rows begin.
  TESSERA_LANES_INLINE int64_t begin_of(int64_t bag) const {
    return bag == 0 ? 0 : ends[bag - 1];
  }
  // What to divide a bag by: one that has no entries divides zeros by one.
  TESSERA_LANES_INLINE int64_t divisor(int64_t bag) const {
    return counts != nullptr && counts[bag] > 0 ? counts[bag] : 1;
  }
};

// Threads may share it.
template <typename T>
class BagRuns {
 public:
  // Requires: `mode` is kSum or kMean; per_sample_weights are of T. `reader`
  // and `input` outlive this. Throws as mean_counts.
  BagRuns(const BagReader& reader, const BagIndices& input, BagMode mode)
      : reader_(reader),
        is_mean_(mode == BagMode::kMean),
        own_counts_(mean_counts(input, reader.bags())) {
    if (input.per_sample_weights.has_value()) {
      per_sample_weights_ = input.per_sample_weights->contiguous();
    }
  }

  // Calls body(const BagRun<T>&) for the runs of bags [begin, end).
  template <typename Body>
  void each(int64_t begin, int64_t end, const Body& body) const {
    const bool weighted = per_sample_weights_.defined();
    std::vector<BagAcc<T>> entry_scales;
    reader_.each_run(
        begin,
        end,
        /*with_places=*/weighted,
        [&](int64_t b, int64_t next, const BagEntries& entries) {
          if (weighted) {
            const T* all = per_sample_weights_.template const_data_ptr<T>();
            entry_scales.clear();
            for (int64_t e = 0; e < entries.held; ++e) {
              entry_scales.push_back(
                  static_cast<BagAcc<T>>(all[entries.places[e]]));
            }
          }
          const int64_t* counts = nullptr;
          if (is_mean_) {
            counts = own_counts_ != nullptr ? own_counts_ + b
                                            : entries.counts.data();
          }
          body(BagRun<T>{
              b,
              next - b,
              entries.rows,
              weighted ? entry_scales.data() : nullptr,
              entries.ends.data(),
              counts});
        });
  }

 private:
  const BagReader& reader_;
  bool is_mean_;
  const int64_t* own_counts_;
  at::Tensor per_sample_weights_;
};

}  // namespace tessera::detail
