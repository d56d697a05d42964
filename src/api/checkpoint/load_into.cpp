#include "api/checkpoint/load_into.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "api/checkpoint/read_boxes.h"
#include "dispatch/tensor.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

struct Destination {
  at::Tensor memory;  // a shard, or a plain tensor
  Box box;
  std::vector<Box> shared;
  size_t self = 0;
};

// Beyond, it costs more to find out whose turn it is than to verify.
constexpr size_t kMostTogether = 64;

void check_names(const Source& source, const TensorMap& tensors) {
  std::string missing;
  int64_t count = 0;
  for (const auto& [name, tensor] : tensors) {
    if (source.manifest().tensors.contains(name)) continue;
    if (++count <= 5) missing += (count > 1 ? ", '" : "'") + name + "'";
  }
  if (count > 5) missing += " and " + std::to_string(count - 5) + " more";
  TORCH_CHECK_VALUE(
      count == 0, "[load] ", source.path(), " does not hold ", missing);
}

void check_fits(
    const std::string& name,
    const SavedTensor& saved,
    const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(
      tensor.defined(), "[load] '", name, "' is an undefined tensor");
  TORCH_CHECK_VALUE(
      tensor.sizes() == SizesRef(saved.shape),
      "[load] '",
      name,
      "' has the shape ",
      tensor.sizes(),
      " but ",
      SizesRef(saved.shape),
      " was saved");
  TORCH_CHECK_VALUE(
      tensor.is_complex() == c10::isComplexType(saved.dtype),
      "[load] '",
      name,
      "' is of dtype ",
      tensor.scalar_type(),
      " but ",
      saved.dtype,
      " was saved");
}

std::vector<Destination> plain_destination(
    const at::Tensor& tensor, const Together* together) {
  Destination out{tensor.detach(), whole_box(tensor.sizes()), {}, 0};
  // Several ranks in one process load it once.
  if (together != nullptr && together->here.size() == 1) {
    const auto& ranks = together->ranks;
    out.shared.assign(ranks.size(), out.box);
    out.self = std::find(ranks.begin(), ranks.end(), together->here[0]) -
               ranks.begin();
  }
  return {out};
}

std::vector<Destination> destinations_of(
    const std::string& name,
    const at::Tensor& tensor,
    const Together* together) {
  if (!is_dtensor(tensor)) return plain_destination(tensor, together);
  const auto& spec = *distributed_meta(tensor).spec;
  for (const auto& placement : spec.placements) {
    TORCH_CHECK_VALUE(
        !placement.is_partial(),
        "[load] '",
        name,
        "' is a pending reduction (",
        placement.str(),
        "): load into a tensor that is sharded or replicated");
  }
  begin_write(tensor, "load");
  // The positions of the ranks that load together, and their boxes.
  std::vector<int64_t> positions;
  std::vector<Box> shared;
  if (together != nullptr) {
    for (const int64_t rank : together->ranks) {
      const int64_t position = spec.mesh.position_of(rank);
      if (position < 0) continue;
      positions.push_back(position);
      shared.push_back(box_of(spec, position));
    }
  }
  const auto& shards = current_shards(tensor);
  std::vector<Destination> out;
  for (size_t i = 0; i < shards.size(); ++i) {
    const int64_t position = spec.mesh.local_positions()[i];
    const auto self = std::find(positions.begin(), positions.end(), position);
    out.push_back(
        {shards[i],
         box_of(spec, position),
         shared,
         static_cast<size_t>(self - positions.begin())});
  }
  return out;
}

bool takes_bytes(const at::Tensor& memory, c10::ScalarType dtype) {
  return memory.is_cpu() && memory.is_contiguous() &&
         memory.scalar_type() == dtype && !memory.is_conj() && !memory.is_neg();
}

}  // namespace

void load_into(
    const Source& source, const TensorMap& tensors, const Together* together) {
  if (together != nullptr && together->ranks.size() > kMostTogether) {
    together = nullptr;
  }
  const c10::NoGradGuard no_grad;
  check_names(source, tensors);
  std::vector<BoxTarget> targets;
  // Where bytes cannot go into place as they are: another device, dtype or
  // order of dimensions.
  std::vector<std::pair<at::Tensor, at::Tensor>> staged;
  for (const auto& [name, tensor] : tensors) {
    const auto& saved = source.manifest().tensors.at(name);
    check_fits(name, saved, tensor);
    for (auto& [memory, box, shared, self] :
         destinations_of(name, tensor, together)) {
      if (box.numel() == 0) continue;
      TORCH_CHECK_VALUE(
          !memory.is_meta(),
          "[load] '",
          name,
          "' is a meta tensor: give it memory first (empty_like, to_empty)");
      at::Tensor into = memory;
      if (!takes_bytes(memory, saved.dtype)) {
        into = at::empty(box.size, at::TensorOptions(saved.dtype));
        staged.emplace_back(memory, into);
      }
      targets.push_back(
          {name,
           &saved,
           box,
           static_cast<char*>(into.mutable_data_ptr()),
           std::move(shared),
           self});
    }
    // As any other write in place does.
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
  read_boxes(source, targets);
  for (const auto& [memory, value] : staged) memory.copy_(value);
  for (const auto& [name, tensor] : tensors) {
    if (is_dtensor(tensor)) end_write(tensor, "load");
  }
}

}  // namespace tessera::detail
