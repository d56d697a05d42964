#include "dispatch/fallback.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <mutex>
#include <string_view>
#include <unordered_set>

#include "comm/comm_event.h"
#include "dispatch/copied_view.h"
#include "dispatch/implicit_moves.h"
#include "dispatch/op_plan.h"
#include "dispatch/plain_args.h"
#include "dispatch/replicated_results.h"
#include "dispatch/run_steps.h"
#include "dispatch/scopes.h"
#include "dispatch/shared_draw.h"
#include "dispatch/tensor.h"
#include "tessera/language.h"

namespace tessera::detail {

namespace {

// Ops whose meaning is not a function of values: those that change what a
// tensor's storage is, and those that answer only for this process.
bool is_about_storage(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {
      "aten::_assert_async",
      "aten::_debug_has_internal_overlap",
      "aten::_pin_memory",
      "aten::_resize_output",
      "aten::_resize_output_",
      "aten::embedding_renorm",
      "aten::embedding_renorm_",
      "aten::is_set_to",
      "aten::pin_memory",
      "aten::record_stream",
      "aten::resize",
      "aten::resize_",
      "aten::resize_as",
      "aten::resize_as_",
      "aten::resize_as_sparse",
      "aten::resize_as_sparse_",
      "aten::set",
      "aten::set_",
      "aten::sparse_resize",
      "aten::sparse_resize_",
      "aten::sparse_resize_and_clear",
      "aten::sparse_resize_and_clear_",
  };
  return names.count(name.substr(0, name.find('.'))) != 0;
}

// Collectives of torch.distributed are about a rank's own tensor.
bool is_collective(std::string_view name) {
  const auto space = name.substr(0, name.find("::"));
  return space == "c10d" || space == "symm_mem" || space == "_dtensor" ||
         space.substr(0, 5) == "_c10d";
}

void check_allowed(const OpInfo& op) {
  if (is_strict() || is_never_gathered(op.name)) {
    refuse_without_rule(op);
  }
}

// Says once an op what it cost.
void warn_of_gathering(const OpInfo& op, int64_t bytes) {
  static std::mutex mutex;
  static auto* const warned = new std::unordered_set<std::string>;
  {
    const std::lock_guard lock(mutex);
    if (!warned->insert(op.name).second) {
      return;
    }
  }
  TORCH_WARN(
      "Operator ",
      op.display_name,
      " does not have a sharding strategy registered: its inputs were gathered "
      "on every rank (",
      bytes,
      " bytes in this call). Add a rule with ",
      spell("tessera::register_rule"),
      "(\"",
      op.name,
      "\", ...) to keep it sharded. A strict scope (tessera::Strict, "
      "tessera.strict(), TESSERA_STRICT=1) refuses instead. This is said once "
      "an op.");
}

// One tensor argument: what each local call is given for it.
struct Gathered {
  Shards values;
  bool copied = false;  // the values are not the tensor's own shards
};

// One call on its way.
class GatheredCall {
 public:
  GatheredCall(const OpInfo& op, c10::ArrayRef<c10::IValue> args)
      : op_(op),
        args_(args.begin(), args.end()),
        call_(call_tensors(op, args_)),
        mesh_(common_mesh(op.display_name, call_.tensors)),
        count_(mesh_.local_positions().size()),
        replicated_(mesh_.ndim(), Replicate()) {}

  torch::jit::Stack run() {
    admit_plain();
    check_writes();
    gather();
    ReplicatedResults results(op_, mesh_);
    if (count_ == 0) {
      results.infer(args_, call_);
    }
    SharedDraw draw(op_, args_, mesh_);
    torch::jit::Stack local;
    std::vector<at::Tensor> tensors(call_.tensors.size());
    for (size_t k = 0; k < count_; ++k) {
      local.assign(args_.begin(), args_.end());
      for (size_t i = 0; i < tensors.size(); ++i) {
        const auto& values = inputs_[i].values;
        tensors[i] = values.empty() ? at::Tensor() : values[k];
      }
      put_tensors(local, call_.slots, tensors);
      draw.run(local);
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (is_written(i)) {
          write_back(i, k, tensors[i]);
        }
      }
      results.take(local);
    }
    return results.wrap(
        args_,
        [&](int32_t argument,
            size_t output,
            const SpecPtr& spec,
            const Shards& shards) {
          return origin_of(argument, output, spec, shards);
        });
  }

 private:
  bool is_written(size_t i) const {
    return op_.written_args[call_.slots[i].argument] &&
           is_dtensor(call_.tensors[i]);
  }
  bool is_out(size_t i) const {
    return op_.handle.schema().arguments()[call_.slots[i].argument].is_out();
  }

  void admit_plain() const {
    for (const auto& tensor : call_.tensors) {
      if (tensor.defined() && !is_dtensor(tensor) && tensor.dim() != 0) {
        return admit_plain_tensors(op_, args_);
      }
    }
  }

  void check_writes() const {
    for (size_t i = 0; i < call_.tensors.size(); ++i) {
      if (!is_written(i)) {
        continue;
      }
      const auto& placements =
          distributed_meta(call_.tensors[i]).spec->placements;
      for (const auto& placement : placements) {
        TORCH_CHECK_NOT_IMPLEMENTED(
            !placement.is_partial(),
            "Operator ",
            op_.display_name,
            " cannot keep the layout ",
            to_string(placements),
            " of the tensor it writes; redistribute it first "
            "(tensor.redistribute(...)) or use the out-of-place op");
      }
    }
  }

  void gather() {
    c10::SmallVector<SpecPtr, 4> layouts;
    for (const auto& tensor : call_.tensors) {
      layouts.push_back(
          is_dtensor(tensor) ? distributed_meta(tensor).spec : nullptr);
    }
    const CommCauseGuard cause(op_.name, layouts);
    int64_t bytes = 0;
    for (size_t i = 0; i < call_.tensors.size(); ++i) {
      const auto& tensor = call_.tensors[i];
      auto& input = inputs_.emplace_back();
      if (!tensor.defined()) {
        continue;
      }
      if (!is_dtensor(tensor)) {
        input.values = replicated_shards(mesh_, tensor);
        continue;
      }
      const auto& shards = current_shards(tensor);
      const auto& spec = *distributed_meta(tensor).spec;
      if (is_written(i) && is_out(i)) {
        // The op gives it its size, which is then compared.
        input.copied = true;
        for (const auto& shard : shards) {
          input.values.push_back(at::empty({0}, shard.options()));
        }
        continue;
      }
      const auto plan = cached_redistribution(spec, replicated_);
      check_implicit_move(op_, call_.slots[i].argument, spec, *plan);
      input.copied = !plan->steps.empty();
      input.values = run_steps(spec, *plan, shards, Slices::Contiguous);
      if (input.copied) {
        bytes +=
            spec.numel() * static_cast<int64_t>(c10::elementSize(spec.dtype));
        if (op_.is_view) {
          for (auto& value : input.values) {
            value = in_strides(value, spec.strides);
          }
        }
      }
    }
    if (bytes > 0) {
      warn_of_gathering(op_, bytes);
    }
  }

  // Each rank takes its part of what the op wrote.
  void write_back(size_t i, size_t k, const at::Tensor& value) {
    const auto& meta = distributed_meta(call_.tensors[i]);
    TORCH_CHECK(
        value.sizes() == SizesRef(meta.spec->sizes),
        "[",
        op_.display_name,
        "] writes a result of shape ",
        value.sizes(),
        " into a distributed tensor of shape ",
        SizesRef(meta.spec->sizes),
        ", which cannot be resized");
    if (inputs_[i].copied) {
      meta.unchecked_shards()[k].copy_(cut_shard(
          value, mesh_, meta.spec->placements, mesh_.local_positions()[k]));
    }
  }

  // What a view of an argument remembers.
  ViewOrigin origin_of(
      int32_t argument,
      size_t output,
      const SpecPtr& spec,
      const Shards& shards) const {
    for (size_t i = 0; i < call_.tensors.size(); ++i) {
      const auto& tensor = call_.tensors[i];
      if (static_cast<int32_t>(call_.slots[i].argument) == argument &&
          is_dtensor(tensor)) {
        return inputs_[i].copied
                   ? copied_origin(op_, args_, output, spec, shards)
                   : view_origin(tensor);
      }
    }
    return {};
  }

  const OpInfo& op_;
  const torch::jit::Stack args_;
  const CallTensors call_;
  const DeviceMesh mesh_;
  const size_t count_;
  const Placements replicated_;
  std::vector<Gathered> inputs_;
};

}  // namespace

bool is_never_gathered(std::string_view name) {
  return is_about_storage(name) || is_collective(name);
}

void refuse_without_rule(const OpInfo& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "Operator ",
      op.display_name,
      " does not have a sharding strategy registered. Redistribute to plain "
      "tensors (full_tensor(), to_local()) or add a rule with ",
      spell("tessera::register_rule"),
      "(\"",
      op.name,
      "\", ...)");
}

at::Tensor in_strides(const at::Tensor& value, SizesRef strides) {
  auto laid = at::empty_strided(value.sizes(), strides, value.options());
  return laid.is_non_overlapping_and_dense() ? laid.copy_(value) : value;
}

void run_on_gathered(const OpInfo& op, torch::jit::Stack* stack) {
  check_allowed(op);
  const size_t count = op.args.size();
  auto results = GatheredCall(
                     op,
                     c10::ArrayRef<c10::IValue>(
                         stack->data() + stack->size() - count, count))
                     .run();
  stack->resize(stack->size() - count);
  for (auto& value : results) {
    stack->push_back(std::move(value));
  }
}

}  // namespace tessera::detail
