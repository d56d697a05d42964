#include "api/checkpoint/participants.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "comm/comm_event.h"
#include "comm/errors.h"
#include "core/process_context.h"

namespace tessera::detail {

LocalError any_local_error_of(c10::function_ref<void()> body) {
  try {
    return local_error_of(body);
  } catch (const std::exception& error) {
    return {cause_of(error), ErrorKind::Error};
  }
}

Participants Participants::alone() { return {}; }

Participants Participants::of_world() {
  const auto context = current_process_context();
  if (!context) return alone();
  Participants out;
  out.size_ = context->world_size;
  if (context->simulated()) {
    out.here_.resize(out.size_);
    std::iota(out.here_.begin(), out.here_.end(), 0);
    return out;
  }
  out.here_ = {context->rank};
  if (out.size_ > 1) out.mesh_ = init_device_mesh("cpu", {out.size_});
  return out;
}

Participants Participants::in_background() const {
  Participants out = *this;
  if (!mesh_) return out;
  // Meta tensors send nothing, so nobody else uses the connections of a meta
  // mesh.
  out.mesh_ = DeviceMesh("meta", mesh_->all_ranks());
  return out;
}

void Participants::together(
    const char* cause, bool mine, c10::function_ref<void()> body) const {
  const auto error = mine ? any_local_error_of(body) : LocalError{};
  const CommCauseGuard guard(cause);
  if (mesh_) {
    collectives(*mesh_).agree(*mesh_, error.text, error.kind);
  } else if (!error.text.empty()) {
    throw_error(error.kind, error.text);
  }
}

std::vector<int64_t> Participants::gather(
    const std::vector<int64_t>& words,
    const std::vector<int64_t>& counts) const {
  if (!mesh_) return words;
  const CommCauseGuard guard("tessera::checkpoint");
  const auto mine = at::empty({static_cast<int64_t>(words.size())}, at::kLong);
  std::copy(words.begin(), words.end(), mine.mutable_data_ptr<int64_t>());
  const Shards in{mine};
  const Parts parts(counts.begin(), counts.end());
  const auto all = collectives(*mesh_).all_gather({*mesh_, 0}, in, 0, parts)[0];
  const auto* data = all.const_data_ptr<int64_t>();
  return {data, data + all.numel()};
}

}  // namespace tessera::detail
