// The gradient of per_sample_weights: a dot product for each entry.
#include <ATen/Dispatch.h>
#include <ATen/ops/zeros.h>

#include "kernels/bag/bag_kernels_cpu.h"
#include "kernels/bag/bag_lanes.h"
#include "kernels/bag/bag_reader.h"

namespace tessera::detail {

namespace {

// The bags of one run.
template <typename T>
struct DotRun {
  using Acc = BagAcc<T>;

  BagTable<T> table;
  const int64_t* rows;  // Lookahead::kMost more than there are may be read
  const int32_t* places;
  const int64_t* ends;
  int64_t bags;
  const T* grad;  // of the first bag
  T* out;         // of all entries

  template <int Bytes>
  TESSERA_LANES_INLINE void run() const {
    if (bags > 0 && ends[bags - 1] > 0) {
      table.prefetch_first(rows);
    }
    int64_t e = 0;
    for (int64_t b = 0; b < bags; ++b) {
      for (; e < ends[b]; ++e) {
        const int64_t bytes = table.width * static_cast<int64_t>(sizeof(T));
        const auto* coming = reinterpret_cast<const char*>(
            table.data + rows[e + table.ahead.rows] * table.stride);
        for (int64_t i = 0; i < bytes; i += 64) {
          __builtin_prefetch(coming + i, 0, kSecondCache);
        }
        out[places[e]] = static_cast<T>(dot<Bytes>(
            grad + b * table.width, table.data + rows[e] * table.stride));
      }
    }
  }

  template <int Bytes>
  TESSERA_LANES_INLINE Acc dot(const T* a, const T* b) const {
    using L = Lanes<Acc, Bytes>;
    typename L::Vec sums{};
    int64_t c = 0;
    for (; c + L::kCount <= table.width; c += L::kCount) {
      typename L::Vec x;
      typename L::Vec y;
      load_lanes<Bytes>(a + c, x);
      load_lanes<Bytes>(b + c, y);
      sums += x * y;
    }
    Acc sum = 0;
    for (int64_t k = 0; k < L::kCount; ++k) {
      sum += sums[k];
    }
    for (; c < table.width; ++c) {
      sum += static_cast<Acc>(a[c]) * static_cast<Acc>(b[c]);
    }
    return sum;
  }
};

}  // namespace

at::Tensor bag_weights_backward_cpu(
    const at::Tensor& grad, const BagLookup& bags) {
  const at::Tensor& weight = bags.weight;
  const BagReader reader(bags.input, weight.size(0), bags.part);
  const int64_t width = weight.size(1);
  const at::Tensor dense_grad = grad.contiguous();
  at::Tensor out = at::zeros({reader.indices()}, grad.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, grad.scalar_type(), "embedding_bag", [&] {
        reader.parallel_runs(
            width,
            true,
            [&](int64_t b, int64_t next, const BagEntries& entries) {
              run_on_lanes(DotRun<scalar_t>{
                  BagTable<scalar_t>(weight),
                  entries.rows,
                  entries.places.data(),
                  entries.ends.data(),
                  next - b,
                  dense_grad.const_data_ptr<scalar_t>() + b * width,
                  out.mutable_data_ptr<scalar_t>()});
            });
      });
  reader.check_range();
  return out;
}

}  // namespace tessera::detail
