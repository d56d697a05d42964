#include "dispatch/agreement.h"

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include "comm/comm_event.h"

namespace tessera::detail {

LocalError local_error_of(c10::function_ref<void()> check) {
  try {
    check();
  } catch (const c10::TypeError& error) {
    return {error.what_without_backtrace(), ErrorKind::Type};
  } catch (const c10::ValueError& error) {
    return {error.what_without_backtrace(), ErrorKind::Value};
  } catch (const c10::IndexError& error) {
    return {error.what_without_backtrace(), ErrorKind::Index};
  } catch (const c10::NotImplementedError& error) {
    return {error.what_without_backtrace(), ErrorKind::NotImplemented};
  } catch (const c10::Error& error) {
    return {error.what_without_backtrace(), ErrorKind::Error};
  }
  return {};
}

bool differs_over_ranks(PlacementsRef placements, const DeviceMesh& mesh) {
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (placements[m].is_shard() && mesh.size(m) > 1) {
      return true;
    }
  }
  return false;
}

namespace {

thread_local const SameOnAllRanks* compared = nullptr;

// What ranks compare beside their errors: the largest of each is found.
struct Comparison {
  int64_t failed;       // whether there is an error here
  int64_t fingerprint;  // and what its complement makes of the smallest
  int64_t complement;
};

// Of all ranks of the mesh: one small all_reduce a mesh dimension.
Comparison largest(const DeviceMesh& mesh, const Comparison& mine) {
  const auto words =
      at::tensor({mine.failed, mine.fingerprint, mine.complement}, at::kLong);
  Shards all(mesh.local_positions().size(), words);
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    all = collectives(mesh).all_reduce({mesh, m}, all, ReduceOp::Max);
  }
  if (all.empty()) {
    return mine;
  }
  const auto* word = all[0].const_data_ptr<int64_t>();
  return {word[0], word[1], word[2]};
}

// Throws on every rank if there is an error on one, or what they compare is not
// the same on all.
void agree_and_compare(const DeviceMesh& mesh, const LocalError& error) {
  const auto mine = static_cast<int64_t>(compared->fingerprint);
  const auto all = largest(mesh, {error.text.empty() ? 0 : 1, mine, ~mine});
  if (all.failed != 0) {
    collectives(mesh).agree(mesh, error.text, error.kind);
  }
  TORCH_CHECK_VALUE(all.fingerprint == ~all.complement, compared->text);
}

}  // namespace

SameOnAllRanks::SameOnAllRanks(uint64_t value, const char* error)
    : fingerprint(value), text(error) {
  TORCH_INTERNAL_ASSERT(compared == nullptr);
  compared = this;
}

SameOnAllRanks::~SameOnAllRanks() { compared = nullptr; }

void run_agreed(
    const DeviceMesh& mesh,
    std::string_view cause,
    c10::function_ref<void()> body) {
  const auto error = local_error_of(body);
  if (compared != nullptr) {
    // Ranks may come from different ops to compare, by the same message.
    const CommCauseGuard guard("tessera::same_on_all_ranks");
    agree_and_compare(mesh, error);
  } else {
    const CommCauseGuard guard(cause);
    collectives(mesh).agree(mesh, error.text, error.kind);
  }
}

}  // namespace tessera::detail
