// Bags over parts of a table against ATen's on the whole: every option, every
// width of vectors, random trials.
#include <ATen/Parallel.h>

#include <algorithm>
#include <random>

#include "bag_cases.h"
#include "kernels/bag/bag_lanes.h"

namespace tessera::detail {
namespace bag_test {

// Runs the test's kernels on vectors no wider than `most` while it lives.
class LaneLimit {
 public:
  explicit LaneLimit(LaneWidth most) : before_(limit_lane_width(most)) {}
  ~LaneLimit() { limit_lane_width(before_); }
  LaneLimit(const LaneLimit&) = delete;
  LaneLimit& operator=(const LaneLimit&) = delete;

 private:
  LaneWidth before_;
};

constexpr LaneWidth kWidths[] = {
    LaneWidth::kBase, LaneWidth::kAvx2, LaneWidth::kAvx512};
constexpr BagMode kModes[] = {BagMode::kSum, BagMode::kMean, BagMode::kMax};
constexpr at::ScalarType kTypes[] = {
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

TEST(Bag, EveryOption) {
  for (const BagCalls& kernels : bag_kernels()) {
    for (const BagMode mode : kModes) {
      for (int options = 0; options < 16; ++options) {
        BagCase c;
        c.mode = mode;
        c.index = (options & 1) != 0 ? at::kInt : at::kLong;
        c.include_last = (options & 2) != 0;
        c.padded = (options & 4) != 0;
        c.weighted = (options & 8) != 0 && mode == BagMode::kSum;
        c.seed = options;
        check_bags(kernels, c);
      }
    }
  }
}

// Widths around every number of columns that a vector or a block may hold.
TEST(Bag, EveryWidthOfRowsAndVectors) {
  for (const LaneWidth lanes : kWidths) {
    const LaneLimit limit(lanes);
    for (const at::ScalarType dtype : kTypes) {
      for (const BagMode mode : kModes) {
        for (const int64_t width :
             {0,
              1,
              2,
              3,
              4,
              5,
              7,
              8,
              9,
              15,
              16,
              17,
              31,
              33,
              63,
              64,
              100,
              257}) {
          BagCase c;
          c.mode = mode;
          c.dtype = dtype;
          c.width = width;
          c.weighted = mode == BagMode::kSum && width % 2 == 1;
          c.seed = width;
          check_bags(kFused, c);
          if (has_gpu() && lanes == LaneWidth::kBase) {
            check_bags(kGpu, c);
          }
        }
      }
    }
  }
}

TEST(Bag, Edges) {
  for (const BagCalls& kernels : bag_kernels()) {
    for (const BagMode mode : kModes) {
      for (const bool last : {false, true}) {
        BagCase c;
        c.mode = mode;
        c.include_last = last;
        c.bags = 0;
        check_bags(kernels, c);  // no bags
        c.bags = 40;
        c.longest = 0;
        check_bags(kernels, c);  // no indices, more offsets than indices
        c.longest = 1;
        c.bags = 3;
        check_bags(kernels, c);
        c.rows = 1;
        c.padded = true;
        c.longest = 4;
        check_bags(kernels, c);  // all padding, and parts without rows
        c.rows = 0;
        check_bags(kernels, c);  // a table without rows
      }
    }
  }
}

TEST(Bag, RandomTrials) {
  std::mt19937_64 random(7);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int trial = 0; trial < 1'500; ++trial) {
    BagCase c;
    c.rows = 1 + below(trial % 10 == 0 ? 3'000 : 40);
    c.width = below(90);
    c.bags = below(30);
    c.longest = below(trial % 5 == 0 ? 60 : 12);
    c.mode = kModes[below(3)];
    c.dtype = kTypes[below(4)];
    c.index = below(2) == 0 ? at::kInt : at::kLong;
    c.include_last = below(2) == 0;
    c.weighted = c.mode == BagMode::kSum && below(2) == 0;
    c.padded = below(2) == 0;
    c.parts = 1 + below(5);
    c.seed = trial;
    const LaneLimit limit(kWidths[below(3)]);
    check_bags(trial % 8 == 0 ? kAnyDevice : kFused, c);
    if (has_gpu()) {
      check_bags(kGpu, c);
    }
    if (HasFailure()) {
      return;
    }
  }
}

// Bags longer than what is read at a time, and more bags than that.
TEST(Bag, LongAndMany) {
  for (const BagCalls& kernels :
       has_gpu() ? std::vector{kFused, kGpu} : std::vector{kFused}) {
    for (const BagMode mode : kModes) {
      BagCase c;
      c.mode = mode;
      c.rows = 500;
      c.dtype = at::kDouble;
      c.bags = 3;
      c.longest = 30'000;
      check_bags(kernels, c);
      c.bags = 5'000;
      c.longest = 2;
      check_bags(kernels, c);
    }
  }
}

std::vector<at::Tensor> everything(const BagCase& c) {
  const BagSample s = make_sample(c);
  const at::Tensor grad = s.table.new_empty({c.bags, c.width})
                              .copy_(at::arange(c.bags * c.width, at::kDouble)
                                         .sin()
                                         .view({c.bags, c.width}));
  std::vector<at::Tensor> all;
  const BagPart part{0, c.rows};
  std::optional<at::Tensor> argmax;
  if (c.mode == BagMode::kMax) {
    const BagMax max = embedding_bag_max_part(s.table, part, s.input);
    all = {max.values, max.argmax};
    argmax = max.argmax;
  } else {
    all = {embedding_bag_part(s.table, part, s.input, c.mode)};
    all.push_back(embedding_bag_weights_backward(grad, s.table, part, s.input));
  }
  const BagGradient bags{grad, part, s.input, c.mode, argmax};
  all.push_back(embedding_bag_dense_backward(bags, c.rows));
  const at::Tensor sparse = embedding_bag_sparse_backward(bags, c.rows);
  all.push_back(sparse.indices());
  all.push_back(sparse.values());
  return all;
}

TEST(Bag, ThreadsDoNotMatter) {
  const int before = at::get_num_threads();
  for (const at::ScalarType dtype : kTypes) {
    for (const BagMode mode : kModes) {
      BagCase c;
      c.rows = 300;
      c.width = 70;
      c.bags = 900;
      c.longest = 30;
      c.mode = mode;
      c.dtype = dtype;
      at::set_num_threads(1);
      const std::vector<at::Tensor> one = everything(c);
      at::set_num_threads(4);
      const std::vector<at::Tensor> four = everything(c);
      ASSERT_EQ(one.size(), four.size());
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_TRUE(at::equal(one[i], four[i])) << dtype << " result " << i;
      }
    }
  }
  at::set_num_threads(before);
}

}  // namespace bag_test
}  // namespace tessera::detail
