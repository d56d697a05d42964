#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/complex.h>

#include "kernels/gather/gather_kernels.h"
#include "kernels/gather/gather_walk.h"
#include "kernels/lookup/embedding_index.h"
#include "kernels/lookup/embedding_zeros.h"

namespace tessera::detail {
namespace {

// Reports the first bad index of a line.
template <class Index>
void report_bad(
    const Index* indices,
    int64_t stride,
    const GatherLine& line,
    int64_t size,
    FirstPlace& bad) {
  for (int64_t j = 0; j < line.length; ++j) {
    if (!is_inside(indices[line.index + j * stride], size)) {
      bad.report(line.place + j);
      return;
    }
  }
}

void throw_if_bad(const FirstPlace& bad, const HeldPlaces& part) {
  if (bad) {
    throw_outside_dimension(
        part.index.reshape({-1}).select(0, bad.get()).item<int64_t>(),
        part.dim,
        part.size);
  }
}

// Calls f with an unsigned value as large as an item of `bytes` bytes.
template <class F>
void with_item_type(size_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      TORCH_INTERNAL_ASSERT(bytes == 16, "an item of ", bytes, " bytes");
      return f(c10::complex<double>{});
  }
}

// The range of the dimension that is held here.
struct HeldRange {
  int64_t first;
  int64_t held;
  int64_t size;  // of the whole dimension
};

// Calls visit(j, local, inside) for each index of a line: where it stands in
// the line, which entry of those held here it names, and whether it names one.
template <class Index, class Visit>
void visit_line(
    const GatherWalk& walk,
    const GatherLine& line,
    const Index* indices,
    const HeldRange& range,
    FirstPlace& bad,
    const Visit& visit) {
  const auto [first, held, size] = range;
  const int64_t stride = walk.index_strides.back();
  const Index* const begin = indices + line.index;
  bool good = true;
  for (int64_t j = 0; j < line.length; ++j) {
    const int64_t index = begin[j * stride];
    const int64_t local = offset_from(first, index);
    good &= is_inside(index, size);
    visit(j, local, is_inside(local, held));
  }
  if (!good) {
    report_bad(indices, stride, line, size, bad);
  }
}

at::Tensor gather_cpu(const at::Tensor& self, const HeldPlaces& given) {
  const auto& [dim, index, first, size] = given;
  const int64_t held = self.dim() == 0 ? 1 : self.size(dim);
  at::Tensor out = at::empty(index.sizes(), self.options());
  // Without an entry to read in vain, zeros of one that is made up do.
  const at::Tensor part = held > 0 ? self : at::zeros({1}, self.options());
  const at::DimVector nowhere(index.dim(), 0);
  const GatherWalk walk(
      index,
      held > 0 ? self.strides() : c10::IntArrayRef(nowhere),
      out.strides(),
      dim);
  const HeldRange range{first, held, size};
  FirstPlace bad;
  with_index_data(index, [&](const auto* indices) {
    with_item_type(self.element_size(), [&](auto item) {
      using Item = decltype(item);
      const auto* const from = static_cast<const Item*>(part.const_data_ptr());
      auto* const to = static_cast<Item*>(out.mutable_data_ptr());
      walk.in_parallel(/*allow_dim=*/true, [&](const GatherLine& line) {
        const Item* const source = from + line.a;
        Item* const target = to + line.b;
        const int64_t stride = walk.a_strides.back();
        const int64_t step = walk.a_step;
        const auto copy = [=](int64_t j, int64_t local, bool inside) {
          // Reads the first entry in vain rather than guess a branch.
          const Item item = source[j * stride + (inside ? local : 0) * step];
          target[j] = inside ? item : Item{};
        };
        visit_line(walk, line, indices, range, bad, copy);
      });
    });
  });
  throw_if_bad(bad, given);
  return out;
}

at::Tensor gather_backward_cpu(
    const at::Tensor& grad,
    const HeldPlaces& given,
    c10::IntArrayRef local_sizes) {
  const auto& [dim, index, first, size] = given;
  at::Tensor out = lazy_zeros(
      local_sizes, grad.options().dtype(at::toOpMathType(grad.scalar_type())));
  const HeldRange range{
      first, local_sizes.empty() ? 1 : local_sizes[dim], size};
  const GatherWalk walk(index, out.strides(), grad.strides(), dim);
  FirstPlace bad;
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND3(
      at::kHalf,
      at::kBFloat16,
      at::kComplexHalf,
      grad.scalar_type(),
      "gather_part_backward",
      [&] {
        const auto* const from = grad.const_data_ptr<scalar_t>();
        auto* const to = out.mutable_data_ptr<at::opmath_type<scalar_t>>();
        with_index_data(index, [&](const auto* indices) {
          walk.in_parallel(/*allow_dim=*/false, [&](const GatherLine& line) {
            const auto add = [&](int64_t j, int64_t local, bool inside) {
              if (inside) {
                to[line.a + j * walk.a_strides.back() + local * walk.a_step] +=
                    static_cast<at::opmath_type<scalar_t>>(
                        from[line.b + j * walk.b_strides.back()]);
              }
            };
            visit_line(walk, line, indices, range, bad, add);
          });
        });
      });
  throw_if_bad(bad, given);
  return out.to(grad.scalar_type());
}

}  // namespace

const GatherKernels& GatherKernels::cpu() {
  static constexpr GatherKernels kernels{gather_cpu, gather_backward_cpu};
  return kernels;
}

}  // namespace tessera::detail
