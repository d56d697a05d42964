#include "embedding/bag_ops.h"
#include "embedding/embedding.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include "dispatch/kernel.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using OptionalInt = std::optional<int64_t>;
using OptionalTensor = std::optional<at::Tensor>;

constexpr const char* kBag =
    "bag(Tensor weight, Tensor indices, Tensor offsets, "
    "Tensor? per_sample_weights=None, int mode=0, "
    "bool include_last_offset=False, int padding_idx=-1, "
    "bool whole_bags=False, *, int first_row=0, int? table_rows=None, "
    "int first_bag=0, int? bag_count=None, int first_index=0) "
    "-> (Tensor, Tensor)";
constexpr const char* kBagBackward =
    "bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor weight, "
    "Tensor? per_sample_weights=None, Tensor? argmax=None, int mode=0, "
    "bool include_last_offset=False, int padding_idx=-1, "
    "bool whole_bags=False, bool sparse=False, *, int first_row=0, "
    "int? table_rows=None, int first_bag=0, int? bag_count=None, "
    "int first_index=0) -> Tensor";
constexpr const char* kBagWeightsBackward =
    "bag_weights_backward(Tensor grad, Tensor indices, Tensor offsets, "
    "Tensor weight, bool include_last_offset=False, int padding_idx=-1, "
    "bool whole_bags=False, *, int first_row=0, int? table_rows=None, "
    "int first_bag=0, int? bag_count=None, int first_index=0) -> Tensor";

void check_bag_table(const at::Tensor& weight) {
  TORCH_CHECK_VALUE(
      weight.dim() == 2,
      "[embedding_bag] expected a table of two dimensions, but got one of "
      "shape ",
      weight.sizes());
}

BagPart part_of(const at::Tensor& weight, const BagLocal& local) {
  return {local.first_row, local.table_rows.value_or(weight.size(0))};
}

at::Tensor no_argmax(const at::Tensor& weight) {
  return at::empty({0}, weight.options().dtype(at::kInt));
}

std::tuple<at::Tensor, at::Tensor> plain(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const OptionalTensor& per_sample_weights,
    int64_t mode,
    bool include_last_offset,
    int64_t padding_idx,
    bool whole_bags,
    int64_t first_row,
    OptionalInt table_rows,
    int64_t first_bag,
    OptionalInt bag_count,
    int64_t first_index) {
  auto bags = plain_bag(
      weight,
      indices,
      offsets,
      per_sample_weights,
      {static_cast<BagMode>(mode),
       include_last_offset,
       padding_idx,
       whole_bags},
      {first_row, table_rows, first_bag, bag_count, first_index},
      BagEmpty::kZero);
  return {std::move(bags.pooled), std::move(bags.argmax)};
}

std::tuple<at::Tensor, at::Tensor> meta(
    const at::Tensor& weight,
    const at::Tensor&,
    const at::Tensor& offsets,
    const OptionalTensor&,
    int64_t mode,
    bool include_last_offset,
    int64_t,
    bool,
    int64_t,
    OptionalInt,
    int64_t,
    OptionalInt bag_count,
    int64_t) {
  check_bag_table(weight);
  const int64_t bags =
      bag_count.value_or(all_bags(offsets, include_last_offset));
  const bool max = static_cast<BagMode>(mode) == BagMode::kMax;
  auto pooled = at::empty({bags, weight.size(1)}, weight.options());
  return {
      pooled,
      max ? at::empty(pooled.sizes(), pooled.options().dtype(at::kInt))
          : no_argmax(weight)};
}

at::Tensor plain_backward(
    const at::Tensor& grad,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const at::Tensor& weight,
    const OptionalTensor& per_sample_weights,
    const OptionalTensor& argmax,
    int64_t mode,
    bool include_last_offset,
    int64_t padding_idx,
    bool whole_bags,
    bool sparse,
    int64_t first_row,
    OptionalInt table_rows,
    int64_t first_bag,
    OptionalInt bag_count,
    int64_t first_index) {
  const BagArgs args{
      static_cast<BagMode>(mode), include_last_offset, padding_idx, whole_bags};
  const BagLocal local{
      first_row, table_rows, first_bag, bag_count, first_index};
  TORCH_CHECK_VALUE(
      grad.dim() == 2 && grad.size(1) == weight.size(1),
      "[tessera.bag_backward] expected a gradient with ",
      weight.size(1),
      " columns, but got one of shape ",
      grad.sizes());
  const auto backward =
      sparse ? embedding_bag_sparse_backward : embedding_bag_dense_backward;
  return backward(
      {grad,
       part_of(weight, local),
       local_bags(indices, offsets, per_sample_weights, args, local),
       args.mode,
       args.mode == BagMode::kMax ? argmax : std::nullopt},
      weight.size(0));
}

at::Tensor meta_backward(
    const at::Tensor& grad,
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor& weight,
    const OptionalTensor&,
    const OptionalTensor&,
    int64_t,
    bool,
    int64_t,
    bool,
    bool,
    int64_t,
    OptionalInt,
    int64_t,
    OptionalInt,
    int64_t) {
  return at::empty(weight.sizes(), grad.options());
}

at::Tensor plain_weights_backward(
    const at::Tensor& grad,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const at::Tensor& weight,
    bool include_last_offset,
    int64_t padding_idx,
    bool whole_bags,
    int64_t first_row,
    OptionalInt table_rows,
    int64_t first_bag,
    OptionalInt bag_count,
    int64_t first_index) {
  const BagArgs args{
      BagMode::kSum, include_last_offset, padding_idx, whole_bags};
  const BagLocal local{
      first_row, table_rows, first_bag, bag_count, first_index};
  return embedding_bag_weights_backward(
      grad,
      weight,
      part_of(weight, local),
      local_bags(indices, offsets, std::nullopt, args, local));
}

at::Tensor meta_weights_backward(
    const at::Tensor& grad,
    const at::Tensor& indices,
    const at::Tensor&,
    const at::Tensor&,
    bool,
    int64_t,
    bool,
    int64_t,
    OptionalInt,
    int64_t,
    OptionalInt,
    int64_t) {
  return at::empty(indices.sizes(), grad.options());
}

}  // namespace

BagLocal bags_at(
    const Spec& table, const Spec& batch, int64_t bags, int64_t position) {
  const auto rows =
      local_range(table.sizes[0], 0, table.mesh, table.placements, position);
  const auto held =
      local_range(bags, 0, table.mesh, batch.placements, position);
  const auto places =
      local_range(batch.sizes[0], 0, table.mesh, batch.placements, position);
  return {rows.begin, table.sizes[0], held.begin, held.size, places.begin};
}

BagInput local_bags(
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const OptionalTensor& per_sample_weights,
    const BagArgs& args,
    const BagLocal& local) {
  BagInput input{
      .indices = indices,
      .offsets = offsets,
      .include_last_offset = args.include_last_offset,
      .padding_idx = args.padding_idx,
      .per_sample_weights = per_sample_weights};
  const int64_t all = all_bags(offsets, args.include_last_offset);
  if (local.bag_count.value_or(all) != all || local.first_index != 0) {
    input.offsets = offsets.narrow(0, local.first_bag, *local.bag_count)
                        .sub(local.first_index);
    input.include_last_offset = false;
  }
  return input;
}

Bags plain_bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    const OptionalTensor& per_sample_weights,
    const BagArgs& args,
    const BagLocal& local,
    BagEmpty empty) {
  check_bag_table(weight);
  const auto input =
      local_bags(indices, offsets, per_sample_weights, args, local);
  if (args.mode == BagMode::kMax) {
    auto max =
        embedding_bag_max_part(weight, part_of(weight, local), input, empty);
    return {std::move(max.values), std::move(max.argmax)};
  }
  return {
      embedding_bag_part(weight, part_of(weight, local), input, args.mode),
      no_argmax(weight)};
}

void register_bag_ops(OpRegistry& ops) {
  ops.define("bag", kBag, &plain, &meta);
  ops.define("bag_backward", kBagBackward, &plain_backward, &meta_backward);
  ops.define(
      "bag_weights_backward",
      kBagWeightsBackward,
      &plain_weights_backward,
      &meta_weights_backward);
}

}  // namespace tessera::detail
