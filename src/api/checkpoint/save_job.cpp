#include "api/checkpoint/save_job.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/api/include/torch/version.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>
#include <utility>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/data_file.h"
#include "api/checkpoint/directory.h"
#include "api/checkpoint/system_calls.h"
#include "dispatch/tensor.h"
#include "tessera/dtensor.h"

namespace tessera::detail {

namespace {

// Without what is still to be reduced.
at::Tensor settled(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return tensor;
  const DTensor distributed(tensor);
  Placements placements;
  for (const auto& placement : distributed.placements()) {
    placements.push_back(placement.is_partial() ? Replicate() : placement);
  }
  return distributed.redistribute(placements);
}

uint64_t draw_id() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

}  // namespace

SaveJob::SaveJob(
    std::string root, const TensorMap& tensors, SaveOptions options)
    : root_(std::move(root)),
      options_(std::move(options)),
      participants_(Participants::of_world()) {
  const c10::NoGradGuard no_grad;
  TensorMap settled_tensors;
  std::vector<int64_t> words;
  participants_.together("tessera::save", true, [&] {
    TORCH_CHECK_VALUE(
        options_.step >= 0 && options_.keep >= 0 && !root_.empty(),
        "[save] expected a directory, a step and a number of checkpoints to "
        "keep, 0 or more, but got '",
        root_,
        "', step ",
        options_.step,
        " and keep ",
        options_.keep);
    // Refuses what cannot be saved before ranks wait for each other.
    plan_save(tensors, participants_.size(), 0);
    words = {
        static_cast<int64_t>(draw_id()),
        static_cast<int64_t>(fingerprint(tensors)),
        options_.step};
  });
  const auto all = participants_.gather(
      words, std::vector<int64_t>(participants_.size(), 3));
  for (size_t i = 0; i < all.size(); i += 3) {
    TORCH_CHECK_VALUE(
        all[i + 1] == all[1] && all[i + 2] == all[2],
        "[save] rank ",
        i / 3,
        " saves other tensors, layouts or another step than rank 0: every "
        "rank must pass the same names, shapes, dtypes, meshes, placements and "
        "step");
  }
  for (const auto& [name, tensor] : tensors) {
    settled_tensors[name] = settled(tensor.detach());
  }
  plan_ = plan_save(
      settled_tensors, participants_.size(), static_cast<uint64_t>(all[0]));
  for (const int64_t rank : participants_.here()) {
    for (const auto& piece : plan_.files[rank].pieces) {
      pieces_[rank].push_back(
          piece_of(settled_tensors.at(piece.name), piece.box, rank));
    }
  }
  generators_ = generator_states();
}

void SaveJob::go_to_background() {
  participants_ = participants_.in_background();
  const c10::NoGradGuard no_grad;
  for (auto& [rank, pieces] : pieces_) {
    for (auto& piece : pieces) {
      auto copy = at::empty(piece.sizes(), piece.options().device(at::kCPU));
      copy.copy_(piece);
      piece = std::move(copy);
    }
  }
}

std::string SaveJob::run() {
  const c10::NoGradGuard no_grad;
  // Held until all ranks are through, or this one gives up.
  std::optional<SaveLock> lock;
  participants_.together("tessera::save", participants_.leads(), [&] {
    make_root(root_);
    lock.emplace(root_);
    recover(root_);
    remove_leftovers(root_);
    make_directory(unfinished_path(root_, options_.step, plan_.id));
  });
  try {
    std::vector<int64_t> sums;
    participants_.together("tessera::save", true, [&] { write(sums); });
    std::vector<int64_t> counts;
    counts.reserve(plan_.files.size());
    for (const auto& file : plan_.files) counts.push_back(file.chunk_count());
    const auto all = participants_.gather(sums, counts);
    finish(all);
  } catch (...) {
    if (lock) {
      // What is there already stays; this is a courtesy that may fail.
      any_local_error_of([&] {
        remove_tree(unfinished_path(root_, options_.step, plan_.id));
      });
    }
    throw;
  }
  return path();
}

void SaveJob::write(std::vector<int64_t>& sums) {
  const auto directory = unfinished_path(root_, options_.step, plan_.id);
  for (const int64_t rank : participants_.here()) {
    const auto written = write_data_file(
        directory + "/" + data_file_name(rank),
        plan_.files[rank],
        pieces_[rank]);
    sums.insert(sums.end(), written.begin(), written.end());
    // Snapshots are given back as soon as they are written.
    pieces_[rank].clear();
  }
}

// Ranks of other machines may have written elsewhere.
void SaveJob::check_files() const {
  const auto directory = unfinished_path(root_, options_.step, plan_.id);
  for (size_t rank = 0; rank < plan_.files.size(); ++rank) {
    const auto path =
        directory + "/" + data_file_name(static_cast<int64_t>(rank));
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    TORCH_CHECK(
        !error && static_cast<int64_t>(bytes) == plan_.files[rank].bytes,
        "[save] rank 0 does not find the file that rank ",
        rank,
        " wrote, ",
        path,
        ": the directory must be on a file system that all ranks share");
  }
}

// The lock is held: nobody else counts.
int64_t SaveJob::number_of_save() const {
  const auto others = checkpoints_of(root_);
  if (!options_.newest) {
    for (const auto& other : others) {
      if (other.step == options_.step) return other.saved;
    }
  }
  return others.empty() ? 1 : others[0].saved + 1;
}

void SaveJob::finish(const std::vector<int64_t>& sums) {
  // The state of every rank's generators; a rank without one has no words.
  std::map<std::string, std::map<int64_t, std::string>> generators;
  for (const auto& [device, words] : generators_) {
    const auto n = static_cast<int64_t>(words.size());
    std::vector<int64_t> mine;
    // Simulated ranks share the generators of this process.
    const size_t copies = participants_.here().size();
    for (size_t i = 0; i < copies; ++i) {
      mine.insert(mine.end(), words.begin(), words.end());
    }
    const auto all = participants_.gather(
        mine, std::vector<int64_t>(participants_.size(), n));
    std::string first;
    for (int64_t rank = 0; rank < participants_.size(); ++rank) {
      std::string text;
      for (int64_t i = 0; i < n; ++i) {
        text += hex16(static_cast<uint64_t>(all[rank * n + i]));
      }
      if (rank == 0) first = text;
      if (rank == 0 || text != first) generators[device][rank] = text;
    }
  }
  participants_.together("tessera::save", participants_.leads(), [&] {
    check_files();
    auto manifest = make_manifest(plan_, sums);
    manifest.step = options_.step;
    manifest.saved = number_of_save();
    manifest.tessera_version = TESSERA_VERSION;
    manifest.torch_version = TORCH_VERSION;
    manifest.generators = generators;
    manifest.values = options_.values;
    const auto text = write_manifest(manifest);
    const auto directory = unfinished_path(root_, options_.step, plan_.id);
    OutputFile file(directory + "/" + kManifestName);
    file.append(text.data(), text.size());
    file.finish();
    sync_directory(directory);
    publish(root_, options_.step, plan_.id);
    remove_old(root_, options_.keep, options_.step);
  });
}

}  // namespace tessera::detail
