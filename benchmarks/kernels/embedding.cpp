// The kernels of sharded embeddings beside the ATen ops that they stand for, in
// one run: each case and what it is compared with are called in random
// order, and medians are printed.
//
//   OMP_NUM_THREADS=1 bench_kernels_embedding [--rounds N] [--only TEXT]
#include "kernels/lookup/embedding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/gather/gather.h"
#include "kernels/lookup/route.h"

namespace {

using tessera::detail::gather_part;
using tessera::detail::gather_part_backward;
using tessera::detail::lookup_rows;
using tessera::detail::lookup_rows_backward;
using tessera::detail::lookup_rows_sparse_backward;
using tessera::detail::route_rows;

using Call = std::function<at::Tensor()>;

constexpr int64_t kTable = 1'000'000;
constexpr int64_t kHeld = 250'000;
constexpr int64_t kFirst = 250'000;
constexpr int64_t kColumns = 64;
constexpr int64_t kIndices = 16'384;

struct Measured {
  std::string name;
  std::vector<std::pair<std::string, Call>> calls;  // ours first
  int repeat = 1;  // calls per sample, for those shorter than the clock
};

// Microseconds a call. The result dies outside the time taken, as one that is
// used would.
double sample(const Call& call, int repeat) {
  using Clock = std::chrono::steady_clock;
  at::Tensor last;
  const auto begin = Clock::now();
  for (int i = 0; i < repeat; ++i) {
    last = call();
  }
  const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
  return time.count() / repeat;
}

double median(std::vector<double> samples) {
  const auto middle =
      samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

void measure(const Measured& measured, int rounds) {
  std::vector<std::vector<double>> samples(measured.calls.size());
  // In another order each round: a call finds in the caches what the one before
  // it left there.
  std::vector<size_t> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(0);
  for (int round = -3; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      const double time = sample(measured.calls[i].second, measured.repeat);
      if (round >= 0) {
        samples[i].push_back(time);
      }
    }
  }
  const double ours = median(samples[0]);
  for (size_t i = 0; i < samples.size(); ++i) {
    const double time = median(samples[i]);
    std::printf(
        "%-28s %-34s %10.2f us   ours / this %5.2f\n",
        i == 0 ? measured.name.c_str() : "",
        measured.calls[i].first.c_str(),
        time,
        ours / time);
  }
}

// What users write without the kernel.
at::Tensor masked_lookup(const at::Tensor& weight, const at::Tensor& indices) {
  const at::Tensor away =
      indices.lt(kFirst).logical_or_(indices.ge(kFirst + weight.size(0)));
  at::Tensor local = indices - kFirst;
  local.masked_fill_(away, 0);
  return at::embedding(weight, local).masked_fill_(away.unsqueeze(-1), 0);
}

at::Tensor index_put_lookup(
    const at::Tensor& weight, const at::Tensor& indices) {
  const at::Tensor away =
      indices.lt(kFirst).logical_or_(indices.ge(kFirst + weight.size(0)));
  at::Tensor local = indices - kFirst;
  local.index_put_({away}, at::zeros({}, local.options()));
  at::Tensor out = at::embedding(weight, local);
  return out.index_put_({away}, at::zeros({}, out.options()));
}

std::vector<Measured> lookups() {
  const at::Tensor weight = at::randn({kHeld, kColumns});
  const at::Tensor indices = at::randint(kTable, {kIndices}, at::kLong);
  const at::Tensor held =
      indices.ge(kFirst).logical_and_(indices.lt(kFirst + kHeld));
  const at::Tensor places = held.nonzero().squeeze(1);
  const at::Tensor local = indices.index_select(0, places) - kFirst;
  const at::Tensor grad = at::randn({kIndices, kColumns});
  const at::Tensor held_grad = grad.index_select(0, places);
  const at::Tensor expanded = at::ones({1, 1}).expand({kIndices, kColumns});
  const at::Tensor half_weight = weight.to(at::kHalf);
  const at::Tensor tiny = at::randn({16, 8});
  const at::Tensor tiny_indices = at::randint(16, {5, 4}, at::kLong);

  const auto backward = [=](const at::Tensor& g, bool scaled) {
    return lookup_rows_backward(
        g, {indices, kFirst, kHeld, kTable}, -1, scaled);
  };
  return {
      {"lookup 16384 of 1M x 64",
       {{"ours", [=] { return lookup_rows(weight, indices, kFirst, kTable); }},
        {"embedding of held + zero fill",
         [=] {
           const at::Tensor rows = at::embedding(weight, local);
           return at::zeros({kIndices, kColumns});
         }},
        {"embedding of clamped, masked_fill",
         [=] { return masked_lookup(weight, indices); }},
        {"embedding of clamped, index_put",
         [=] { return index_put_lookup(weight, indices); }}}},
      {"lookup, half",
       {{"ours",
         [=] { return lookup_rows(half_weight, indices, kFirst, kTable); }},
        {"embedding of held + zero fill",
         [=] {
           const at::Tensor rows = at::embedding(half_weight, local);
           return at::zeros({kIndices, kColumns}, at::kHalf);
         }}}},
      {"lookup 5x4 of 16 x 8",
       {{"ours", [=] { return lookup_rows(tiny, tiny_indices, 0, 16); }},
        {"embedding", [=] { return at::embedding(tiny, tiny_indices); }}},
       1000},
      {"backward, dense",
       {{"ours", [=] { return backward(grad, false); }},
        {"zeros + index_add_ of held",
         [=] {
           return at::zeros({kHeld, kColumns}).index_add_(0, local, held_grad);
         }}}},
      {"backward, dense, read once",
       {{"ours", [=] { return backward(grad, false).sum(); }},
        {"zeros + index_add_ of held",
         [=] {
           return at::zeros({kHeld, kColumns})
               .index_add_(0, local, held_grad)
               .sum();
         }}}},
      {"backward, dense, expanded",
       {{"ours", [=] { return backward(expanded, false); }},
        {"contiguous grad", [=] { return backward(grad, false); }}}},
      {"backward, dense, by frequency",
       {{"ours", [=] { return backward(grad, true); }},
        {"zeros + index_add_ of held",
         [=] {
           return at::zeros({kHeld, kColumns}).index_add_(0, local, held_grad);
         }}}},
      {"backward, sparse",
       {{"ours",
         [=] {
           return lookup_rows_sparse_backward(
               grad, {indices, kFirst, kHeld, kTable}, -1);
         }},
        {"sparse_coo of held, coalesce", [=] {
           return at::sparse_coo_tensor(
                      local.unsqueeze(0), held_grad, {kHeld, kColumns})
               .coalesce();
         }}}}};
}

std::vector<Measured> routes() {
  std::vector<Measured> all;
  const std::vector<int64_t> bounds{0, 250'000, 500'000, 750'000, kTable};
  for (const int64_t n : {20, 4'096, 16'384, 65'536}) {
    const at::Tensor indices = at::randint(kTable, {n}, at::kLong);
    all.push_back(
        {"route " + std::to_string(n),
         {{"ours", [=] { return route_rows(indices, bounds).place; }},
          {"unique with inverse",
           [=] { return std::get<1>(at::_unique2(indices, true, true)); }}},
         n < 1000 ? 100 : 1});
  }
  return all;
}

std::vector<Measured> gathers() {
  const at::Tensor self = at::randn({4'096, 1'000});
  const at::Tensor index = at::randint(4'000, {4'096, 16}, at::kLong);
  const at::Tensor near = at::randint(1'000, {4'096, 16}, at::kLong);
  const at::Tensor grad = at::randn({4'096, 16});
  return {
      {"gather 4096 x 16 of 4000",
       {{"ours", [=] { return gather_part(self, {1, index, 1'000, 4'000}); }},
        {"gather, all held", [=] { return at::gather(self, 1, near); }}}},
      {"gather backward",
       {{"ours",
         [=] {
           return gather_part_backward(
               grad, {1, index, 1'000, 4'000}, {4'096, 1'000});
         }},
        {"zeros + scatter_add_, all held", [=] {
           return at::zeros({4'096, 1'000}).scatter_add_(1, near, grad);
         }}}}};
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 50;
  std::string only;
  CLI::App app("Kernels of sharded embeddings beside ATen's");
  app.add_option("--rounds", rounds, "samples of each call")
      ->check(CLI::PositiveNumber);
  app.add_option("--only", only, "cases whose name holds this text");
  CLI11_PARSE(app, argc, argv);

  const c10::InferenceMode no_gradients;
  at::manual_seed(0);
  std::printf("%d thread(s)\n", at::get_num_threads());
  for (const auto& cases : {lookups(), routes(), gathers()}) {
    for (const Measured& measured : cases) {
      if (measured.name.find(only) != std::string::npos) {
        measure(measured, rounds);
      }
    }
  }
  return 0;
}
