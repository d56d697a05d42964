// The kernels of embedding bags beside at::embedding_bag, in one run: each case
// and what it is compared with are called in turn, and medians are printed,
// with the share of the read bandwidth that is measured in between.
//
//   OMP_NUM_THREADS=1 bench_kernels_bag [--rounds N] [--only TEXT]
#include "kernels/bag/bag.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/bag/bag_lanes.h"
#include "kernels/huge_pages.h"

namespace {

using namespace tessera::detail;  // NOLINT: nothing else is measured

constexpr int64_t kRows = 1'000'000;
constexpr int64_t kColumns = 64;
constexpr int64_t kBags = 2'048;
constexpr int64_t kBagLength = 20;
constexpr int64_t kIndices = kBags * kBagLength;
// Several inputs in turn: the rows of one would stay in the last cache.
constexpr int kInputs = 8;

using Call = std::function<void(int input)>;

double milliseconds(const Call& call, int input) {
  const auto begin = std::chrono::steady_clock::now();
  call(input);
  const std::chrono::duration<double, std::milli> taken =
      std::chrono::steady_clock::now() - begin;
  return taken.count();
}

double median(std::vector<double> values) {
  std::nth_element(
      values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Adds up all of a table, on this machine's widest vectors.
struct ReadAll {
  const float* data;
  int64_t count;
  float* sink;

  template <int Bytes>
  TESSERA_LANES_INLINE void run() const {
    using L = Lanes<float, Bytes>;
    typename L::Vec sums[4] = {};
    for (int64_t i = 0; i + 4 * L::kCount <= count; i += 4 * L::kCount) {
      for (int k = 0; k < 4; ++k) {
        typename L::Vec v;
        load_lanes<Bytes>(data + i + k * L::kCount, v);
        sums[k] += v;
      }
    }
    *sink += sums[0][0] + sums[1][0] + sums[2][0] + sums[3][0];
  }
};

std::vector<at::Tensor> uniform_inputs() {
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < kInputs; ++i) {
    inputs.push_back(at::randint(0, kRows, {kIndices}, at::kLong));
  }
  return inputs;
}

// Row k is asked for in proportion to 1 / k; which rows are often asked for is
// the same in all inputs, as in life.
std::vector<at::Tensor> zipf_inputs() {
  std::vector<double> sums(kRows);
  double sum = 0;
  for (int64_t k = 0; k < kRows; ++k) {
    sum += 1.0 / static_cast<double>(k + 1);
    sums[k] = sum;
  }
  const at::Tensor names = at::randperm(kRows, at::kLong);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> draw(0, sum);
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < kInputs; ++i) {
    std::vector<int64_t> ranks(kIndices);
    for (int64_t& rank : ranks) {
      const auto found =
          std::lower_bound(sums.begin(), sums.end(), draw(random));
      rank = std::min<int64_t>(found - sums.begin(), kRows - 1);
    }
    inputs.push_back(names.index_select(0, at::tensor(ranks, at::kLong)));
  }
  return inputs;
}

// On huge pages, as the library places tables, or on those that memory has
// where nobody asks.
at::Tensor make_table(bool small_pages) {
  const at::Tensor table = at::empty({kRows, kColumns});
  if (!small_pages) {
    prefer_huge_pages(table);
  }
  return table.uniform_();
}

struct Bench {
  int rounds;
  std::string only;
  at::Tensor table = {};
  float sink = 0;

  // Prints one line. `bytes` are the table's bytes that a call reads; 0 where
  // bandwidth is not the question.
  void compare(
      const std::string& name,
      const Call& theirs,
      const Call& ours,
      double bytes) {
    if (name.find(only) == std::string::npos) {
      return;
    }
    // As much as a call reads, each time from another place.
    const auto count = static_cast<int64_t>(bytes / sizeof(float));
    int64_t from = 0;
    const Call read = [&](int) {
      run_on_lanes(ReadAll{table.const_data_ptr<float>() + from, count, &sink});
      from = (from + count) % (table.numel() - count);
    };
    std::vector<double> read_ms;
    std::vector<double> their_ms;
    std::vector<double> our_ms;
    for (int round = 0; round < rounds; ++round) {
      const int input = round % kInputs;
      if (bytes > 0) {
        read_ms.push_back(milliseconds(read, 0));
      }
      // The one must not find the rows that the other has fetched.
      their_ms.push_back(milliseconds(theirs, input));
      our_ms.push_back(milliseconds(ours, (input + kInputs / 2) % kInputs));
    }
    const double ours_median = median(our_ms);
    std::printf(
        "%-34s at:: %8.3f ms  ours %8.3f ms  %5.2fx  best %8.3f %8.3f %5.2fx",
        name.c_str(),
        median(their_ms),
        ours_median,
        median(their_ms) / ours_median,
        *std::min_element(their_ms.begin(), their_ms.end()),
        *std::min_element(our_ms.begin(), our_ms.end()),
        *std::min_element(their_ms.begin(), their_ms.end()) /
            *std::min_element(our_ms.begin(), our_ms.end()));
    if (bytes > 0) {
      const double machine = bytes / median(read_ms);
      std::printf(
          "  %4.1f GB/s of %4.1f: %3.0f%%",
          bytes / ours_median / 1e6,
          machine / 1e6,
          100 * bytes / ours_median / machine);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  void all(const std::string& name, const std::vector<at::Tensor>& inputs) {
    const at::Tensor offsets = at::arange(0, kIndices, kBagLength, at::kLong);
    const BagPart whole{0, kRows};
    const at::Tensor grad = at::rand({kBags, kColumns});
    const double bytes = kIndices * kColumns * sizeof(float);
    const auto input = [&](int i) { return BagIndices{inputs[i], offsets}; };
    const char* modes[] = {"sum", "mean", "max"};
    for (int64_t m = 0; m < 3; ++m) {
      const auto mode = static_cast<BagMode>(m);
      const std::string title = name + " " + modes[m];
      compare(
          title,
          [&](int i) {
            at::embedding_bag(table, inputs[i], offsets, false, m);
          },
          [&](int i) {
            if (mode == BagMode::kMax) {
              embedding_bag_max_part(table, whole, input(i), BagEmpty::kZero);
            } else {
              embedding_bag_part(table, whole, input(i), mode);
            }
          },
          bytes);
      std::vector<std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>>
          saved;
      std::vector<BagMax> maxima;
      for (const at::Tensor& indices : inputs) {
        saved.push_back(at::_embedding_bag(table, indices, offsets, false, m));
        maxima.push_back(embedding_bag_max_part(
            table, whole, {indices, offsets}, BagEmpty::kZero));
      }
      for (const std::string kind : {"sparse", "coalesced", "dense"}) {
        // ATen's sparse gradient names a row as often as it is looked up; ours
        // is coalesced, so it stands beside both.
        const bool sparse = kind != "dense";
        if (sparse && mode == BagMode::kMax) {
          continue;  // ATen has none
        }
        compare(
            title + " " + kind + " backward",
            [&](int i) {
              const auto& [out, bags, sizes, rows] = saved[i];
              const at::Tensor result = at::_embedding_bag_backward(
                  grad,
                  inputs[i],
                  offsets,
                  bags,
                  sizes,
                  rows,
                  kRows,
                  false,
                  m,
                  sparse,
                  std::nullopt);
              if (kind == "coalesced") {
                result.coalesce();
              }
            },
            [&](int i) {
              const auto f = sparse ? embedding_bag_sparse_backward
                                    : embedding_bag_dense_backward;
              f({grad, whole, input(i), mode, maxima[i].argmax}, kRows);
            },
            0);
      }
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  Bench bench;
  bench.rounds = 41;
  CLI::App app("The kernels of embedding bags beside ATen's");
  app.add_option("--rounds", bench.rounds, "calls of each");
  app.add_option("--only", bench.only, "cases whose name has this in it");
  bool small_pages = false;
  app.add_flag("--small-pages", small_pages, "put the table on small pages");
  CLI11_PARSE(app, argc, argv);
  bench.table = make_table(small_pages);
  at::set_num_threads(1);
  const c10::InferenceMode guard;
  bench.all("uniform", uniform_inputs());
  bench.all("zipf", zipf_inputs());
  return bench.sink == 0.5F ? 1 : 0;  // so that nothing read is left out
}
