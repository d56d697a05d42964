#include "kernels/cuda/call.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "kernels/bag/bag_reader.h"
#include "kernels/device_errors.h"
#include "kernels/gather/gather_kernels.h"
#include "kernels/lookup/embedding_index.h"

namespace tessera::detail {

namespace {

constexpr int kMostDevices = 64;

// In pinned host memory, which every device can write.
struct Records {
  int32_t flag;
  cuda::Record of_device[kMostDevices];
};

struct Device {
  std::once_flag once;
  cuda::Claim* claim = nullptr;
};

Device& device_state(c10::DeviceIndex index) {
  static std::array<Device, kMostDevices> devices;
  return devices.at(index);
}

Records& records() {
  static Records* const made = [] {
    void* memory = nullptr;
    C10_CUDA_CHECK(cudaHostAlloc(
        &memory, sizeof(Records), cudaHostAllocPortable | cudaHostAllocMapped));
    auto* const all = new (memory) Records{};
    device_error_flag.store(&all->flag, std::memory_order_release);
    return all;
  }();
  return *made;
}

void free_claim(cuda::Claim* claim) {
  const cuda::Claim free{0, cuda::kNoPlace};
  C10_CUDA_CHECK(
      cudaMemcpy(claim, &free, sizeof(free), cudaMemcpyHostToDevice));
}

cuda::Report report_of(c10::DeviceIndex index) {
  Device& device = device_state(index);
  std::call_once(device.once, [&] {
    C10_CUDA_CHECK(cudaMalloc(&device.claim, sizeof(cuda::Claim)));
    free_claim(device.claim);
  });
  Records& all = records();
  return {&all.of_device[index], &all.flag, device.claim};
}

[[noreturn]] void raise_record(const cuda::Record& record) {
  switch (static_cast<cuda::BadInput>(record.kind)) {
    case cuda::BadInput::kBagIndex:
      throw_outside_bag_table(record.value, record.bound);
    case cuda::BadInput::kGatherIndex:
      throw_outside_dimension(record.value, record.other, record.bound);
    case cuda::BadInput::kBagOffsets:
      throw_bad_offsets(record.value, record.other, record.bound);
    default:
      throw_outside_table(record.value, record.bound);
  }
}

}  // namespace

std::atomic<const volatile int32_t*> device_error_flag{nullptr};

void raise_recorded_errors() {
  Records& all = records();
  if (std::atomic_ref<int32_t>(all.flag).exchange(0) == 0) {
    return;  // another thread raises it
  }
  for (int d = 0; d < kMostDevices; ++d) {
    if (all.of_device[d].kind == 0) {
      continue;
    }
    const auto index = static_cast<c10::DeviceIndex>(d);
    const c10::cuda::CUDAGuard guard(index);
    // The kernel may find an earlier one yet.
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    const cuda::Record record = std::exchange(all.of_device[d], {});
    std::atomic_ref<int32_t>(all.flag).store(0);
    free_claim(device_state(index).claim);
    try {
      raise_record(record);
    } catch (c10::Error& error) {
      error.add_context(
          "It was found on a GPU by a kernel that may belong to an earlier "
          "call; set CUDA_LAUNCH_BLOCKING=1 to see it where it is caused");
      throw;
    }
  }
}

namespace cuda {

Call::Call(const at::Tensor& tensor)
    : device_(tensor.device()),
      guard_(device_),
      stream_(c10::cuda::getCurrentCUDAStream(device_.index())),
      report_(report_of(device_.index())) {
  raise_device_errors();
}

at::Tensor Call::memory(size_t bytes) const {
  return at::empty(
      {static_cast<int64_t>(bytes)},
      at::TensorOptions(at::kByte).device(device_));
}

void Call::finish() const { raise_device_errors(); }

EntryMemory entry_memory(const Call& call, int64_t count) {
  const int64_t each = padded(count);
  at::Tensor memory = call.memory(4 * each * sizeof(uint32_t));
  auto* const data = reinterpret_cast<uint32_t*>(memory.mutable_data_ptr());
  return {
      std::move(memory),
      {{data, data + each}, {data + 2 * each, data + 3 * each}}};
}

SortedEntries sorted_entries(
    const Call& call, const EntryMemory& memory, int64_t count, int64_t rows) {
  SortedEntries out{memory.memory, {}};
  const size_t bytes = sort_scratch(count, rows);
  const at::Tensor scratch = call.memory(bytes);
  C10_CUDA_CHECK(sort_entries(
      memory.entries,
      count,
      rows,
      scratch.mutable_data_ptr(),
      bytes,
      &out.sorted,
      call.stream()));
  return out;
}

at::Tensor run_numbers(const Call& call, const Sorted& sorted) {
  at::Tensor numbers =
      call.memory(sorted.count * sizeof(int32_t)).view(at::kInt);
  const size_t bytes = number_scratch(sorted.count);
  const at::Tensor scratch = call.memory(bytes);
  C10_CUDA_CHECK(number_runs(
      sorted,
      reinterpret_cast<uint32_t*>(numbers.mutable_data_ptr<int32_t>()),
      scratch.mutable_data_ptr(),
      bytes,
      call.stream()));
  return numbers;
}

at::Tensor distinct_row_list(
    const Call& call,
    const Sorted& sorted,
    const at::Tensor& numbers,
    int64_t first_row,
    int64_t count) {
  at::Tensor rows = at::empty({count}, numbers.options().dtype(at::kLong));
  C10_CUDA_CHECK(distinct_rows(
      sorted,
      reinterpret_cast<const uint32_t*>(numbers.const_data_ptr<int32_t>()),
      first_row,
      rows.mutable_data_ptr<int64_t>(),
      call.stream()));
  return rows;
}

std::optional<Scalar> scalar_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Scalar::kFloat;
    case at::kDouble:
      return Scalar::kDouble;
    case at::kHalf:
      return Scalar::kHalf;
    case at::kBFloat16:
      return Scalar::kBFloat16;
    default:
      return std::nullopt;
  }
}

Integers integers_of(const at::Tensor& list) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(list.is_contiguous());
  return {list.const_data_ptr(), list.numel(), list.scalar_type() == at::kLong};
}

}  // namespace cuda

}  // namespace tessera::detail
