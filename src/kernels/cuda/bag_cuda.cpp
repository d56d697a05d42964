#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "kernels/bag/bag_kernels.h"
#include "kernels/bag/bag_reader.h"
#include "kernels/cuda/bag.h"
#include "kernels/cuda/bag_gradient.h"
#include "kernels/cuda/call.h"
#include "kernels/cuda/row_update.h"

namespace tessera::detail {

namespace {

using namespace cuda;

// The lists of bags as kernels read them, and what keeps them alive.
struct Lists {
  explicit Lists(const BagIndices& input)
      : indices(input.indices.contiguous()),
        offsets(input.offsets.contiguous()) {
    check_bag_lists(input);
    if (input.per_sample_weights.has_value()) {
      weights = input.per_sample_weights->contiguous();
    }
    bags = {
        integers_of(indices),
        integers_of(offsets),
        input.offsets.numel() - input.include_last_offset,
        input.padding_idx};
  }

  const void* weight_data() const {
    return weights.defined() ? weights.const_data_ptr() : nullptr;
  }

  at::Tensor indices;
  at::Tensor offsets;
  at::Tensor weights;
  Bags bags;
};

BagTable table_of(const at::Tensor& weight, const BagPart& part) {
  TORCH_INTERNAL_ASSERT(
      part.first >= 0 && part.first + weight.size(0) <= part.total);
  return {
      weight.const_data_ptr(),
      weight.stride(0),
      weight.size(1),
      *scalar_of(weight.scalar_type()),
      {part.first, weight.size(0), part.total}};
}

// The entries of the bags, row after row, and what each brings to its row.
struct SortedBags {
  at::Tensor grad;
  at::Tensor entry_bags;
  at::Tensor counts;
  at::Tensor argmax;
  Lists lists;
  SortedEntries entries;
  BagTerms terms;
};

SortedBags sorted_bags(
    const Call& call, const BagGradient& bags, int64_t rows) {
  const BagIndices& input = bags.input;
  SortedBags out{bags.grad.contiguous(), {}, {}, {}, Lists(input), {}, {}};
  const int64_t n = out.lists.bags.indices.count;
  const bool mean = bags.mode == BagMode::kMean;
  const bool by_place =
      bags.mode == BagMode::kMax || input.per_sample_weights.has_value();
  if (by_place) {
    out.entry_bags = call.memory(n * sizeof(int32_t)).view(at::kInt);
  }
  if (mean) {
    out.counts = at::empty(
        {out.lists.bags.count}, input.indices.options().dtype(at::kLong));
  }
  const EntryMemory memory = entry_memory(call, n);
  C10_CUDA_CHECK(bag_entries(
      out.lists.bags,
      {bags.part.first, rows, bags.part.total},
      {memory.entries,
       by_place ? out.entry_bags.mutable_data_ptr<int32_t>() : nullptr,
       mean ? out.counts.mutable_data_ptr<int64_t>() : nullptr},
      call.launch()));
  out.entries = sorted_entries(call, memory, n, rows);
  if (mean && input.counts.has_value()) {
    out.counts = *input.counts;
    mean_counts(input, out.lists.bags.count);
  }
  if (bags.mode == BagMode::kMax) {
    out.argmax = bags.argmax->contiguous();
  }
  out.terms = {
      *scalar_of(bags.grad.scalar_type()),
      out.grad.const_data_ptr(),
      out.grad.size(1),
      out.lists.weight_data(),
      mean ? out.counts.const_data_ptr<int64_t>() : nullptr,
      out.argmax.defined() ? out.argmax.const_data_ptr<int32_t>() : nullptr,
      by_place ? out.entry_bags.const_data_ptr<int32_t>() : nullptr};
  return out;
}

at::Tensor sum_scratch(const Call& call, const SortedBags& bags) {
  return call.memory(run_scratch(
      bags.entries.sorted.count,
      bags.terms.width,
      sum_bytes(bags.terms.dtype)));
}

at::Tensor bag_counts_cuda(const BagIndices& input) {
  const Call call(input.indices);
  const Lists lists(input);
  at::Tensor counts =
      at::empty({lists.bags.count}, input.offsets.options().dtype(at::kLong));
  C10_CUDA_CHECK(bag_counts(
      lists.bags, counts.mutable_data_ptr<int64_t>(), call.launch()));
  call.finish();
  return counts;
}

at::Tensor bag_bounds_cuda(const BagIndices& input, int64_t rows) {
  const Call call(input.indices);
  const Lists lists(input);
  at::Tensor bounds = at::zeros(
      {lists.bags.count + 1}, input.indices.options().dtype(at::kLong));
  C10_CUDA_CHECK(bag_bounds(
      lists.bags, rows, bounds.mutable_data_ptr<int64_t>(), call.launch()));
  call.finish();
  return bounds;
}

at::Tensor pool_bags_cuda(
    const BagLookup& bags, BagMode mode, at::ScalarType result) {
  const auto& [weight, part, input] = bags;
  const Call call(weight);
  const Lists lists(input);
  const bool mean = mode == BagMode::kMean;
  at::Tensor out = at::empty(
      {lists.bags.count, weight.size(1)}, weight.options().dtype(result));
  C10_CUDA_CHECK(pool_bags(
      table_of(weight, part),
      lists.bags,
      {lists.weight_data(),
       mean,
       mean ? mean_counts(input, lists.bags.count) : nullptr,
       out.mutable_data_ptr(),
       result != weight.scalar_type()},
      call.launch()));
  call.finish();
  return out;
}

BagMax max_bags_cuda(const BagLookup& bags, BagEmpty empty) {
  const auto& [weight, part, input] = bags;
  const Call call(weight);
  const Lists lists(input);
  const at::DimVector sizes{lists.bags.count, weight.size(1)};
  BagMax out{
      at::empty(sizes, weight.options()),
      at::empty(sizes, weight.options().dtype(at::kInt))};
  C10_CUDA_CHECK(max_bags(
      table_of(weight, part),
      lists.bags,
      {empty == BagEmpty::kZero,
       out.values.mutable_data_ptr(),
       out.argmax.mutable_data_ptr<int32_t>()},
      call.launch()));
  call.finish();
  return out;
}

at::Tensor bags_backward_cuda(
    const BagGradient& bags, int64_t rows, bool sparse) {
  const int64_t n = bags.input.indices.numel();
  if (!can_sort(n, rows) || n == 0) {
    return BagKernels::composed().backward(bags, rows, sparse);
  }
  const Call call(bags.grad);
  const SortedBags in = sorted_bags(call, bags, rows);
  const Sorted& sorted = in.entries.sorted;
  const at::Tensor scratch = sum_scratch(call, in);
  const SortedRun run{sorted, scratch.mutable_data_ptr(), call.stream()};
  const int64_t width = in.terms.width;
  if (!sparse) {
    at::Tensor out = at::zeros({rows, width}, bags.grad.options());
    C10_CUDA_CHECK(
        bag_gradient(run, in.terms, {out.mutable_data_ptr(), nullptr, false}));
    call.finish();
    return out;
  }
  const at::Tensor numbers = run_numbers(call, sorted);
  const auto count = numbers.select(0, n - 1).item<int32_t>();
  call.finish();
  const at::Tensor values = at::empty({count, width}, bags.grad.options());
  C10_CUDA_CHECK(bag_gradient(
      run,
      in.terms,
      {values.mutable_data_ptr(),
       reinterpret_cast<const uint32_t*>(numbers.const_data_ptr<int32_t>()),
       false}));
  return at::_sparse_coo_tensor_unsafe(
      distinct_row_list(call, sorted, numbers, 0, count).unsqueeze(0),
      values,
      {rows, width},
      values.options().layout(at::kSparse),
      /*is_coalesced=*/true);
}

void step_rows_cuda(
    const at::Tensor& weight, const BagGradient& bags, double rate) {
  const int64_t n = bags.input.indices.numel();
  if (!can_sort(n, weight.size(0)) || n == 0) {
    BagKernels::composed().step(weight, bags, rate);
    return;
  }
  const Call call(weight);
  const SortedBags in = sorted_bags(call, bags, weight.size(0));
  const at::Tensor scratch = sum_scratch(call, in);
  C10_CUDA_CHECK(sgd_update(
      {in.entries.sorted, scratch.mutable_data_ptr(), call.stream()},
      in.terms,
      {weight.mutable_data_ptr(),
       weight.stride(0),
       *scalar_of(weight.scalar_type())},
      rate));
  call.finish();
}

at::Tensor bag_weights_backward_cuda(
    const at::Tensor& grad, const BagLookup& bags) {
  const auto& [weight, part, input] = bags;
  const Call call(weight);
  const Lists lists(input);
  const at::Tensor ordered = grad.contiguous();
  // Zeros for entries of no bag.
  at::Tensor out = at::zeros({lists.bags.indices.count}, grad.options());
  C10_CUDA_CHECK(bag_weights_gradient(
      table_of(weight, part),
      lists.bags,
      {ordered.const_data_ptr(), out.mutable_data_ptr()},
      call.launch()));
  call.finish();
  return out;
}

}  // namespace

const BagKernels& BagKernels::cuda() {
  static constexpr BagKernels kernels{
      bag_counts_cuda,
      bag_bounds_cuda,
      pool_bags_cuda,
      max_bags_cuda,
      bags_backward_cuda,
      step_rows_cuda,
      bag_weights_backward_cuda};
  return kernels;
}

}  // namespace tessera::detail
