#include "api/checkpoint/latest.h"

#include <c10/util/Exception.h>

#include <utility>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/directory.h"
#include "api/checkpoint/load_into.h"
#include "api/checkpoint/participants.h"
#include "api/checkpoint/pending_save.h"
#include "api/checkpoint/save_job.h"
#include "comm/transport/host.h"

namespace tessera::detail {

namespace {

// The ranks of this machine. Communicates.
Together on_this_machine(const Participants& participants) {
  const auto machine =
      static_cast<int64_t>(checksum(Host::of_this_process().boot));
  const std::vector<int64_t> mine(participants.here().size(), machine);
  const auto all =
      participants.gather(mine, std::vector<int64_t>(participants.size(), 1));
  Together together{{}, participants.here()};
  for (int64_t rank = 0; rank < participants.size(); ++rank) {
    if (all[rank] == machine) together.ranks.push_back(rank);
  }
  return together;
}

CheckpointInfo load_as(
    const Participants& participants,
    const std::string& path,
    const LoadOptions& options,
    const RequestFor& request_for) {
  CheckpointInfo info;
  const auto together = on_this_machine(participants);
  participants.together("tessera::load", true, [&] {
    const Source source(path);
    const auto request = request_for(source);
    load_into(source, request.tensors, &together);
    if (request.loaded) request.loaded();
    if (options.generators) {
      restore_generators(
          source.manifest(), participants.here()[0], participants.size());
    }
    info = source.info();
  });
  return info;
}

// A damaged checkpoint, as opposed to one that does not fit the program.
bool is_damage(const c10::Error& error) {
  return dynamic_cast<const c10::ValueError*>(&error) == nullptr &&
         dynamic_cast<const c10::TypeError*>(&error) == nullptr &&
         dynamic_cast<const c10::IndexError*>(&error) == nullptr &&
         dynamic_cast<const c10::NotImplementedError*>(&error) == nullptr;
}

// The first of the steps that rank 0 sees which is older than `than`; -1: none.
int64_t next_step(
    const Participants& participants, const std::string& root, int64_t than) {
  int64_t step = -1;
  if (participants.leads()) {
    if (than < 0) {
      // What an interrupted save has moved away is put back, if it may be.
      any_local_error_of([&] {
        const SaveLock lock(root);
        recover(root);
      });
    }
    for (const int64_t candidate : steps_in(root)) {
      if (than < 0 || candidate < than) {
        step = candidate;
        break;
      }
    }
  }
  const std::vector<int64_t> mine(participants.here().size(), step);
  return participants.gather(
      mine, std::vector<int64_t>(participants.size(), 1))[0];
}

}  // namespace

CheckpointInfo load_together(
    const std::string& path,
    const LoadOptions& options,
    const RequestFor& request_for) {
  finish_pending_save();
  return load_as(Participants::of_world(), path, options, request_for);
}

std::optional<CheckpointInfo> load_latest_together(
    const std::string& root,
    const LoadOptions& options,
    const RequestFor& request_for) {
  finish_pending_save();
  const auto participants = Participants::of_world();
  std::vector<std::string> skipped;
  int64_t step = -1;
  while (true) {
    step = next_step(participants, root, step);
    if (step < 0) break;
    try {
      auto info =
          load_as(participants, step_path(root, step), options, request_for);
      info.skipped = std::move(skipped);
      return info;
    } catch (const c10::Error& error) {
      if (!is_damage(error)) throw;
      skipped.emplace_back(error.what_without_backtrace());
      TORCH_WARN(
          "[load_latest] the checkpoint of step ",
          step,
          " is left out: ",
          skipped.back());
    }
  }
  if (skipped.empty()) return std::nullopt;
  TORCH_CHECK(
      false,
      "[load_latest] no checkpoint in ",
      root,
      " is whole; of the newest: ",
      skipped[0]);
}

}  // namespace tessera::detail
