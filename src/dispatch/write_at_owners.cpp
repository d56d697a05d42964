#include "dispatch/write_at_owners.h"

#include <algorithm>
#include <optional>

#include "comm/comm_event.h"
#include "dispatch/copied_view.h"
#include "dispatch/grad_layout.h"
#include "dispatch/op_plan.h"
#include "dispatch/owned_elements.h"
#include "dispatch/write_into_base.h"

namespace tessera::detail {

namespace {

// Whether the op computes each element of what it writes from the elements in
// the same place of the others.
bool is_elementwise(const OpInfo& op) {
  const auto& handle = op.handle;
  return handle.hasTag(at::Tag::pointwise) &&
         !handle.hasTag(at::Tag::nondeterministic_seeded) &&
         op.rule() != nullptr && op.rule()->checked_arguments.empty();
}

bool is_all_replicate(PlacementsRef placements) {
  return std::all_of(
      placements.begin(), placements.end(), [](const Placement& p) {
        return p.is_replicate();
      });
}

bool is_pending(const Spec& spec) {
  return std::any_of(
      spec.placements.begin(), spec.placements.end(), [](const Placement& p) {
        return p.is_partial();
      });
}

// A write into a copied view on its base's shards.
class WriteAtOwners {
 public:
  WriteAtOwners(const OpInfo& op, c10::ArrayRef<c10::IValue> args)
      : op_(op), args_(args), kind_(kind_of(op)) {}

  // Finds out whether it can be.
  bool applies() {
    if (kind_ == Kind::None || args_.empty() || !args_[0].isTensor()) {
      return false;
    }
    const auto& written = args_[0].toTensor();
    if (!is_dtensor(written) || written.is_meta()) {
      return false;
    }
    auto memory = viewed_memory(written);
    if (!memory.has_value() || is_pending(*memory->base->spec)) {
      return false;
    }
    base_ = std::move(memory->base);
    geometry_ = std::move(memory->geometry);
    if (!all_known()) {
      return false;
    }
    owned_ = OwnedElements::of(*base_, geometry_);
    return owned_.has_value();
  }

  void run() {
    check_overlaps();
    const auto& written = args_[0].toTensor();
    keep_grad_layouts(call_tensors(op_, args_).tensors);
    if (kind_ == Kind::Copy && is_dtensor(args_[1].toTensor())) {
      if (is_written_itself(args_[1].toTensor())) {
        return;  // what Python makes of x[i:j] += y, after the sum
      }
      write_into_base(
          *base_,
          geometry_,
          args_[1].toTensor().expand(written.sizes()),
          op_.name);
    } else {
      for (size_t k = 0; k < base_->unchecked_shards().size(); ++k) {
        run_on(k);
      }
    }
    base_->count_write();
  }

 private:
  enum class Kind : uint8_t { None, Copy, Fill, Elementwise };

  static Kind kind_of(const OpInfo& op) {
    if (!op.only_writes || op.returns.size() != 1 ||
        op.returns[0].argument != 0) {
      return Kind::None;
    }
    if (op.name == "aten::copy_") {
      return Kind::Copy;
    }
    if (op.name == "aten::fill_.Scalar" || op.name == "aten::fill_.Tensor" ||
        op.name == "aten::zero_") {
      return Kind::Fill;
    }
    return is_elementwise(op) ? Kind::Elementwise : Kind::None;
  }

  // Whether every rank has what it needs of the other arguments.
  bool all_known() const {
    for (size_t i = 1; i < args_.size(); ++i) {
      if (op_.args[i] == ArgKind::TensorList || op_.written_args[i]) {
        return false;
      }
      if (!args_[i].isTensor() || !args_[i].toTensor().defined()) {
        continue;
      }
      const auto& tensor = args_[i].toTensor();
      if (!is_dtensor(tensor)) {
        if (tensor.dim() != 0) {
          return false;
        }
        continue;
      }
      const Spec& spec = *distributed_meta(tensor).spec;
      if (!(spec.mesh == base_->spec->mesh) || tensor.is_sparse() ||
          (kind_ != Kind::Copy && !is_all_replicate(spec.placements))) {
        return false;
      }
    }
    return true;
  }

  // What ATen checks of memory that several elements share. Where it leaves
  // open what comes out, it is refused.
  void check_overlaps() const {
    TORCH_CHECK(
        kind_ == Kind::Fill || !geometry_.repeats_elements(),
        "unsupported operation: more than one element of the written-to tensor "
        "refers to a single memory location. Please clone() the tensor before "
        "performing the operation.");
    TORCH_CHECK_NOT_IMPLEMENTED(
        kind_ != Kind::Elementwise || !geometry_.may_repeat_elements(),
        "[",
        op_.display_name,
        "] computes with elements of a view that overlap in memory: clone() "
        "the view first");
    for (size_t i = 1; i < args_.size(); ++i) {
      if (args_[i].isTensor() && is_dtensor(args_[i].toTensor())) {
        check_no_partial_overlap(args_[i].toTensor());
      }
    }
  }

  void check_no_partial_overlap(const at::Tensor& read) const;
  bool is_written_itself(const at::Tensor& read) const;

  void run_on(size_t k) {
    torch::jit::Stack local(args_.begin(), args_.end());
    const auto& written = args_[0].toTensor();
    local[0] = owned_->elements(k);
    for (size_t i = 1; i < local.size(); ++i) {
      if (!local[i].isTensor() || !local[i].toTensor().defined() ||
          !is_dtensor(local[i].toTensor())) {
        continue;
      }
      const auto shard = current_shards(local[i].toTensor())[k];
      local[i] = shard.dim() == 0
                     ? shard
                     : owned_->part_of(shard.expand(written.sizes()), k);
    }
    const auto elements = local[0].toTensor();
    op_.handle.callBoxed(&local);
    owned_->put(k, elements);
  }

  const OpInfo& op_;
  const c10::ArrayRef<c10::IValue> args_;
  const Kind kind_;
  MetaPtr base_;
  ViewGeometry geometry_;
  std::optional<OwnedElements> owned_;
};

// Whether a copied view is that of the elements that are written.
bool WriteAtOwners::is_written_itself(const at::Tensor& read) const {
  const auto memory = viewed_memory(read);
  return memory.has_value() && memory->base == base_ &&
         memory->geometry == geometry_;
}

// Two views that leave no gaps overlap in part if their ranges of memory do and
// are not the same. ATen says nothing of others.
void WriteAtOwners::check_no_partial_overlap(const at::Tensor& read) const {
  const auto& meta = distributed_meta(read);
  ViewGeometry other{meta.spec->sizes, meta.spec->strides, 0};
  if (meta.is_copied_view()) {
    auto memory = viewed_memory(read);
    if (!memory.has_value() || memory->base != base_) {
      return;
    }
    other = std::move(memory->geometry);
  } else if (&meta != base_.get()) {
    return;
  }
  if (!other.is_dense() || !geometry_.is_dense() || other.numel() == 0 ||
      geometry_.numel() == 0) {
    return;
  }
  const bool same = other.offset == geometry_.offset &&
                    other.numel() == geometry_.numel() &&
                    other.strides == geometry_.strides;
  const bool apart = other.offset + other.numel() <= geometry_.offset ||
                     geometry_.offset + geometry_.numel() <= other.offset;
  TORCH_CHECK(
      same || apart,
      "unsupported operation: some elements of the input tensor and the "
      "written-to tensor refer to a single memory location. Please clone() the "
      "tensor before performing the operation.");
}

}  // namespace

bool write_at_owners(const OpInfo& op, torch::jit::Stack& stack) {
  const size_t first = stack.size() - op.args.size();
  WriteAtOwners write(
      op, c10::ArrayRef<c10::IValue>(stack.data() + first, op.args.size()));
  if (!write.applies()) {
    return false;
  }
  const CommCauseGuard cause(op.name);
  write.run();
  stack.resize(first + 1);
  return true;
}

}  // namespace tessera::detail
