#include "kernels/bag/bag_kernels_cpu.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "kernels/bag/bag_reader.h"

namespace tessera::detail {

namespace {

at::Tensor bag_counts_cpu(const BagIndices& input) {
  // A part without rows: entries are counted, none is held. Indices are not
  // checked here, where no table is known.
  const BagReader reader(input, 0, BagPart{0, 0});
  const at::Tensor counts =
      at::empty({reader.bags()}, input.offsets.options().dtype(at::kLong));
  BagEntries entries;
  reader.read(0, reader.bags(), true, entries);
  std::copy_n(
      entries.counts.begin(),
      reader.bags(),
      counts.mutable_data_ptr<int64_t>());
  return counts;
}

}  // namespace

const BagKernels& BagKernels::cpu() {
  static constexpr BagKernels kernels{
      bag_counts_cpu,
      bag_bounds_composed,
      pool_bags_cpu,
      max_bags_cpu,
      bags_backward_cpu,
      step_rows_cpu,
      bag_weights_backward_cpu};
  return kernels;
}

}  // namespace tessera::detail
