#include "api/from_local.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "comm/assumed_shapes.h"
#include "comm/collectives.h"
#include "comm/comm_event.h"
#include "core/hash.h"
#include "dispatch/agreement.h"
#include "dispatch/autograd.h"
#include "dispatch/move_rows.h"
#include "dispatch/plain_value.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

constexpr const char* kFromLocal = "[from_local] ";

// The global shape when every rank holds a shard of this one's shape.
Sizes even_shape(
    SizesRef local, const DeviceMesh& mesh, PlacementsRef placements) {
  Sizes shape(local);
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (placements[m].is_shard()) {
      shape[placements[m].dim()] *= mesh.size(m);
    }
  }
  return shape;
}

// Strides of the whole in the memory order of the shard.
Sizes global_strides(SizesRef shape, const at::Tensor& local) {
  return local_strides(shape, local.strides());
}

void check_shapes(
    at::TensorList locals,
    bool shared,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    SizesRef shape) {
  const auto positions = mesh.local_positions();
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto& local = locals[shared ? 0 : i];
    const auto expected = local_shape(shape, mesh, placements, positions[i]);
    TORCH_CHECK_VALUE(
        local.sizes() == SizesRef(expected),
        kFromLocal,
        "rank ",
        mesh.all_ranks()[positions[i]],
        " holds a shard of shape ",
        local.sizes(),
        ", but ",
        to_string(placements),
        " of a tensor of shape ",
        shape,
        " gives it ",
        SizesRef(expected),
        "; for uneven shards pass options.uneven, or options.shape");
  }
}

Sizes given_or_even_shape(
    at::TensorList locals,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FromLocalOptions& options) {
  TORCH_CHECK_VALUE(
      !options.uneven || !options.shape.has_value(),
      kFromLocal,
      "uneven was given together with shape: the shape follows from the sizes "
      "of the shards");
  TORCH_CHECK_VALUE(
      options.shape.has_value() || !options.stride.has_value(),
      kFromLocal,
      "stride was given without shape: pass both or neither");
  if (options.shape.has_value()) {
    return *options.shape;
  }
  return even_shape(locals[0].sizes(), mesh, placements);
}

// A term's gradient must follow only from the reduction's.
void check_differentiable(at::TensorList locals, PlacementsRef placements) {
  if (!c10::GradMode::is_enabled() ||
      std::none_of(locals.begin(), locals.end(), [](const auto& local) {
        return local.requires_grad();
      })) {
    return;
  }
  for (const auto& placement : placements) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !placement.is_partial() || placement.reduce_op() == ReduceOp::Sum ||
            placement.reduce_op() == ReduceOp::Avg,
        kFromLocal,
        "a shard that requires grad cannot be a term of ",
        placement.str(),
        ": its gradient depends on the other ranks' terms. Expected Partial "
        "of sum or avg; otherwise detach() the shard");
  }
}

// One tensor for each position that lives here.
Shards shards_by_position(
    at::TensorList locals, bool shared, const DeviceMesh& mesh) {
  Shards shards(locals.begin(), locals.end());
  if (shared) {
    shards.resize(mesh.local_positions().size(), locals[0]);
  }
  return shards;
}

bool is_recorded(const at::Tensor& local) {
  return c10::GradMode::is_enabled() && local.requires_grad();
}

// Whether every rank has worked out the same shape and dtype, and all shards
// require grad or none; the same answer on all ranks of the mesh.
bool same_on_all_ranks(at::TensorList locals, bool shared, const Spec& spec) {
  const auto& mesh = spec.mesh;
  // As many numbers on every rank, whatever the shape.
  const auto shape = spec.sizes;
  Shards least;
  for (const auto& local : shards_by_position(locals, shared, mesh)) {
    least.push_back(at::tensor(
        {static_cast<int64_t>(shape.size()),
         static_cast<int64_t>(hash_combine(0, c10::ArrayRef<int64_t>(shape))),
         static_cast<int64_t>(spec.dtype),
         static_cast<int64_t>(is_recorded(local))},
        at::kLong));
  }
  Shards most = least;
  // After the last dimension these are the extremes of the whole mesh.
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    least = collectives(mesh).all_reduce({mesh, m}, least, ReduceOp::Min);
    most = collectives(mesh).all_reduce({mesh, m}, most, ReduceOp::Max);
  }
  return least.empty() || least[0].equal(most[0]);
}

// The value becomes the first replica's; the gradient goes to each rank's own
// tensor all the same.
void adopt_first_replicas(
    at::TensorList locals, bool shared, const Spec& spec) {
  const auto& placements = spec.placements;
  if (std::none_of(placements.begin(), placements.end(), [](const auto& p) {
        return p.is_replicate();
      })) {
    return;
  }
  c10::NoGradGuard no_grad;
  auto shards = shards_by_position(locals, shared, spec.mesh);
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    if (placements[m].is_replicate()) {
      shards = collectives(spec.mesh).broadcast({spec.mesh, m}, shards);
    }
  }
  for (size_t i = 0; i < locals.size() && i < shards.size(); ++i) {
    locals[i].detach().copy_(shards[i]);
  }
}

// What from_local makes, once it is known to be right.
struct Checked {
  bool one_for_all;
  SpecPtr spec;
};

// Throws what is wrong with the arguments, as far as this rank can see.
Checked check(
    at::TensorList locals,
    bool shared,
    const DeviceMesh& mesh,
    PlacementsRef given_placements,
    const FromLocalOptions& options) {
  // A rank outside the mesh holds no shard, but says of what kind they are.
  const size_t here = mesh.local_positions().size();
  const bool one_for_all = shared || (here == 0 && locals.size() == 1);
  const size_t expected = one_for_all ? 1 : here;
  TORCH_CHECK_VALUE(
      locals.size() == expected && !locals.empty(),
      kFromLocal,
      "got ",
      locals.size(),
      " shards, but ",
      here,
      " ranks of ",
      mesh.str(),
      " live in this process");
  for (const auto& local : locals) {
    TORCH_CHECK_TYPE(
        local.defined() && !is_dtensor(local),
        kFromLocal,
        "a shard must be a plain tensor, got ",
        local.defined() ? "a distributed one" : "an undefined one");
    check_plain_value(local, "from_local");
    TORCH_CHECK_VALUE(
        local.scalar_type() == locals[0].scalar_type() &&
            local.dim() == locals[0].dim(),
        kFromLocal,
        "the shards differ in dtype or number of dimensions");
  }
  const Placements replicated(mesh.ndim(), Replicate());
  const auto placements = normalize_placements(
      given_placements.empty() ? PlacementsRef(replicated) : given_placements,
      mesh,
      locals[0].dim(),
      "from_local");
  check_differentiable(locals, placements);
  const auto shape = given_or_even_shape(locals, mesh, placements, options);
  const auto strides =
      options.stride.value_or(global_strides(shape, locals[0]));
  auto spec =
      Spec::make(mesh, placements, shape, strides, locals[0].scalar_type());
  if (!options.uneven) {
    check_shapes(locals, one_for_all, mesh, placements, shape);
  }
  return {one_for_all, std::move(spec)};
}

// The last layout that this thread worked out of one shard and no options: in a
// training loop shards of one shape come again and again. What check() looks at
// is remembered beside it, but for requires_grad. The key set says what kind of
// tensor it is.
struct LastLayout {
  SpecPtr spec;
  Placements given;
  Sizes sizes;
  Sizes strides;
  c10::DispatchKeySet keys;

  bool is_of(
      const at::Tensor& local,
      const DeviceMesh& mesh,
      PlacementsRef placements) const {
    return spec != nullptr && local.defined() && local.key_set() == keys &&
           spec->mesh == mesh && spec->dtype == local.scalar_type() &&
           PlacementsRef(given) == placements &&
           SizesRef(sizes) == local.sizes() &&
           SizesRef(strides) == local.strides();
  }
};

SpecPtr layout_of_one(
    const at::Tensor& local, const DeviceMesh& mesh, PlacementsRef placements) {
  thread_local LastLayout last;
  if (last.is_of(local, mesh, placements)) {
    check_differentiable(local, last.spec->placements);
    return last.spec;
  }
  auto spec = check(local, /*shared=*/false, mesh, placements, {}).spec;
  last = {
      spec,
      Placements(placements.begin(), placements.end()),
      Sizes(local.sizes()),
      Sizes(local.strides()),
      local.key_set()};
  return spec;
}

// Whether collectives will join what the ranks hold, each of which has worked
// the shape out from its own shard or its own options.
bool assumes_shape(const Spec& spec) {
  if (spec.mesh.simulated()) {
    return false;
  }
  for (int64_t m = 0; m < spec.mesh.ndim(); ++m) {
    if (!spec.placements[m].is_replicate() && spec.mesh.size(m) > 1) {
      return true;
    }
  }
  return false;
}

// What ranks must have in common for their shards to be joined: a backward pass
// that communicates must run on all ranks or on none.
uint64_t kind_of_shards(at::TensorList locals) {
  return hash_combine(
      hash_combine(
          static_cast<uint64_t>(locals[0].dim()),
          static_cast<uint64_t>(locals[0].scalar_type())),
      is_recorded(locals[0]) ? 1 : 0);
}

// Shards of any size along the dimensions that are sharded.
at::Tensor from_uneven(
    at::TensorList locals,
    const DeviceMesh& mesh,
    bool run_check,
    c10::function_ref<Checked()> check_all) {
  const CommCauseGuard cause("from_local");
  Checked checked{};
  {
    const bool known = !locals.empty() && locals[0].defined();
    const SameOnAllRanks compared(
        known ? kind_of_shards(locals) : 0,
        "[from_local] the ranks' shards differ in dtype, number of dimensions "
        "or requires_grad: uneven shards may differ in size only");
    run_agreed(mesh, "from_local", [&] { checked = check_all(); });
  }
  if (mesh.local_positions().empty()) {
    return from_shards(checked.spec, locals, checked.one_for_all);
  }
  const auto placements = PlacementsRef(checked.spec->placements);
  const auto shapes = gather_shapes(
      mesh, shards_by_position(locals, checked.one_for_all, mesh));
  auto spec = Spec::make(
      mesh,
      placements,
      joined_shape({mesh, placements, shapes}),
      checked.spec->dtype);
  if (run_check) {
    adopt_first_replicas(locals, checked.one_for_all, *spec);
  }
  const auto steps = plan_rows({mesh, placements, shapes});
  if (!steps.empty()) {
    return from_shards(spec, move_rows(mesh, steps, locals), /*shared=*/false);
  }
  std::vector<at::Tensor> contiguous;
  for (const auto& local : locals) {
    contiguous.push_back(local.contiguous());
  }
  return from_shards(spec, contiguous, checked.one_for_all);
}

}  // namespace

at::Tensor from_local(
    at::TensorList locals,
    bool shared,
    const DeviceMesh& mesh,
    PlacementsRef given_placements,
    const FromLocalOptions& options) {
  const auto check_all = [&] {
    return check(locals, shared, mesh, given_placements, options);
  };
  if (options.uneven) {
    return from_uneven(locals, mesh, options.run_check, check_all);
  }
  if (!options.run_check) {
    const bool usual =
        locals.size() == 1 && mesh.local_positions().size() == 1 &&
        !options.shape.has_value() && !options.stride.has_value();
    auto checked =
        usual
            ? Checked{shared, layout_of_one(locals[0], mesh, given_placements)}
            : check_all();
    if (assumes_shape(*checked.spec)) {
      assume_shape(mesh, checked.spec->sizes);
    }
    return from_shards(checked.spec, locals, checked.one_for_all);
  }
  // What one rank finds, every rank throws.
  CommCauseGuard cause("from_local");
  Checked checked{};
  run_agreed(mesh, "from_local", [&] { checked = check_all(); });
  const auto& [one_for_all, spec] = checked;
  TORCH_CHECK_VALUE(
      same_on_all_ranks(locals, one_for_all, *spec),
      kFromLocal,
      "the ranks' shards do not fit together: this rank makes the shape ",
      spec->sizes,
      " and the type ",
      spec->dtype,
      " of its shard, which ",
      is_recorded(locals[0]) ? "requires grad" : "does not require grad",
      "; another rank differs in one of these. For uneven shards pass "
      "options.uneven, or options.shape");
  adopt_first_replicas(locals, one_for_all, *spec);
  return from_shards(checked.spec, locals, one_for_all);
}

}  // namespace tessera::detail
