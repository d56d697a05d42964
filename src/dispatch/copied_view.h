// Copied views. A view of a sharded dimension often cannot share memory with
// its base: the elements of x[2:5] are on ranks that torch.chunk would not give
// them to. Such a view is a tensor with memory of its own that behaves as if
// there were none:
//
// - It is made when it is first read, by its view op, and made again when it is
//   read after its base was written: by whatever tensor shares the base's
//   memory, which counts its writes (DistributedMeta::writes).
// - A write into it is carried out on the copy and then put into the base,
//   whose other views see it so; or, where each rank knows what to write, on
//   the base's own shards (write_at_owners).
// - Once nobody else can reach the base, it is a tensor like any other.
//
// All ranks read and write it together, as they run ops: a read may send.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

#include "dispatch/op_info.h"
#include "dispatch/tensor.h"
#include "dispatch/view_geometry.h"

namespace tessera::detail {

// While one is alive, this thread makes copied views at once, not when they are
// read.
class MakeViewsNow {
 public:
  MakeViewsNow();
  ~MakeViewsNow();
  C10_DISABLE_COPY_AND_ASSIGN(MakeViewsNow);

  static bool is_on();
};

// The view that a call of a view op gives, laid out as `spec`, to be made when
// it is read. Requires: the viewed argument is distributed.
at::Tensor copied_view(
    const OpInfo& op, c10::ArrayRef<c10::IValue> args, SpecPtr spec);

// What result number `output` of a call, which was copied into `shards`,
// remembers. Nothing where the op views no single tensor.
ViewOrigin copied_origin(
    const OpInfo& op,
    c10::ArrayRef<c10::IValue> args,
    size_t output,
    const SpecPtr& spec,
    const Shards& shards);

// What a copy remembers that can be neither written nor made again: of entries
// of a sparse tensor. Reading it after its base was written throws c10::Error.
ViewOrigin frozen_origin(const at::Tensor& base);

// Whether the tensor is a copied view that was never read.
bool is_unmade(const at::Tensor& distributed);

// The memory that a copied view views, and which part of it.
struct ViewedMemory {
  MetaPtr base;
  ViewGeometry geometry;
};

// That of a tensor which is a copied view itself. Nothing for other tensors,
// views of its memory included, and once nobody else reaches the base.
std::optional<ViewedMemory> viewed_memory(const at::Tensor& tensor);

}  // namespace tessera::detail
