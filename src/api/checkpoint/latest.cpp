#include "api/checkpoint/latest.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/directory.h"
#include "api/checkpoint/load_into.h"
#include "api/checkpoint/participants.h"
#include "api/checkpoint/pending_save.h"
#include "api/checkpoint/save_job.h"
#include "comm/transport/host.h"

namespace tessera::detail {

namespace {

// A program that saves faster than this one loads is no reason to go on for
// ever.
constexpr int kMostStale = 100;

// The same number of words of every rank.
std::vector<int64_t> gather_words(
    const Participants& participants, const std::vector<int64_t>& words) {
  std::vector<int64_t> mine;
  for (size_t i = 0; i < participants.here().size(); ++i) {
    mine.insert(mine.end(), words.begin(), words.end());
  }
  const std::vector<int64_t> counts(
      participants.size(), static_cast<int64_t>(words.size()));
  return participants.gather(mine, counts);
}

// The ranks of this machine. Throws on every rank unless all of them have
// opened the same checkpoint. Communicates.
Together agree_on(const Participants& participants, const Source& source) {
  const auto machine =
      static_cast<int64_t>(checksum(Host::of_this_process().boot));
  const auto all = gather_words(
      participants, {machine, static_cast<int64_t>(source.manifest().id)});
  Together together{{}, participants.here()};
  for (int64_t rank = 0; rank < participants.size(); ++rank) {
    TORCH_CHECK(
        all[2 * rank + 1] == all[1],
        "[load] rank ",
        rank,
        " found another checkpoint at ",
        source.path(),
        " than rank 0: it was replaced while it was being read, or the ranks "
        "do not share a file system");
    if (all[2 * rank] == machine) together.ranks.push_back(rank);
  }
  return together;
}

CheckpointInfo load_as(
    const Participants& participants,
    const std::string& path,
    const LoadOptions& options,
    const RequestFor& request_for) {
  std::optional<Source> source;
  participants.together("tessera::load", true, [&] { source.emplace(path); });
  const auto together = agree_on(participants, *source);
  participants.together("tessera::load", true, [&] {
    const auto request = request_for(*source);
    load_into(*source, request.tensors, &together);
    if (request.loaded) request.loaded();
    if (options.generators) {
      restore_generators(
          source->manifest(), participants.here()[0], participants.size());
    }
  });
  return source->info();
}

// A damaged checkpoint, as opposed to one that does not fit the program.
bool is_damage(const c10::Error& error) {
  return dynamic_cast<const c10::ValueError*>(&error) == nullptr &&
         dynamic_cast<const c10::TypeError*>(&error) == nullptr &&
         dynamic_cast<const c10::IndexError*>(&error) == nullptr &&
         dynamic_cast<const c10::NotImplementedError*>(&error) == nullptr;
}

// The checkpoints of a run, one after the other, on all ranks: those that rank
// 0 sees. Another process may save there meanwhile, which replaces and removes
// checkpoints: one that is no longer what it was when it was chosen says
// nothing of the run, and the next is chosen from what there is by then.
class Search {
 public:
  Search(const Participants& participants, std::string root)
      : participants_(participants), root_(std::move(root)) {}

  // The newest that has not been left out; nullopt: there is none.
  // Communicates.
  std::optional<std::string> next() {
    chosen_ = {};
    if (participants_.leads()) {
      while (!choose()) {
        // Each time another process has changed the directory.
      }
    }
    return told(std::filesystem::path(chosen_.path).filename().string());
  }

  // Whether the one that next() gave is no longer there, or another one is.
  // Communicates.
  bool is_stale() {
    const bool stale =
        participants_.leads() && state_of(chosen_.path) != chosen_.state;
    return gather_words(participants_, {stale ? 1 : 0})[0] == 1;
  }

  // next() does not give it again.
  void leave_out() { left_out_.push_back(chosen_); }

 private:
  // Device, number and last change of a directory.
  using State = std::array<int64_t, 4>;
  struct Chosen {
    std::string path;
    State state{};
  };

  // False where the directory changed between two looks at it.
  bool choose() {
    for (auto& found : checkpoints_of(root_)) {
      const auto state = state_of(found.path);
      if (!state) return false;
      if (is_left_out(found.path, *state)) continue;
      chosen_ = {std::move(found.path), *state};
      return true;
    }
    return true;
  }

  static std::optional<State> state_of(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      // A name that leads nowhere is not gone.
      if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
      return State{};
    }
    return State{
        static_cast<int64_t>(status.st_dev),
        static_cast<int64_t>(status.st_ino),
        status.st_ctim.tv_sec,
        status.st_ctim.tv_nsec};
  }

  bool is_left_out(const std::string& path, const State& state) const {
    for (const auto& other : left_out_) {
      if (other.path == path && other.state == state) return true;
    }
    return false;
  }

  // What rank 0 says, as a path; nullopt: nothing. Communicates.
  std::optional<std::string> told(std::string name) const {
    constexpr size_t kWords = 8;  // "step_<int64>.old-<16 digits>"
    std::vector<int64_t> words(kWords);
    name.resize(kWords * sizeof(int64_t));
    std::memcpy(words.data(), name.data(), name.size());
    words = gather_words(participants_, words);
    std::memcpy(name.data(), words.data(), name.size());
    name.resize(std::min(name.find('\0'), name.size()));
    if (name.empty()) return std::nullopt;
    return root_ + "/" + name;
  }

  const Participants& participants_;
  const std::string root_;
  // Of rank 0.
  Chosen chosen_;
  std::vector<Chosen> left_out_;
};

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
  participants.together("tessera::load_latest", true, [&] {
    namespace fs = std::filesystem;
    TORCH_CHECK_VALUE(
        !root.empty() && (!fs::exists(root) || fs::is_directory(root)),
        "[load_latest] expected the directory of a run, but got '",
        root,
        "'");
  });
  Search search(participants, root);
  std::vector<std::string> skipped;
  int stale = 0;
  while (const auto path = search.next()) {
    try {
      auto info = load_as(participants, *path, options, request_for);
      info.skipped = std::move(skipped);
      return info;
    } catch (const c10::Error& error) {
      if (search.is_stale() && ++stale < kMostStale) continue;
      if (!is_damage(error)) throw;
      skipped.emplace_back(error.what_without_backtrace());
      TORCH_WARN(
          "[load_latest] the checkpoint ",
          *path,
          " is left out: ",
          skipped.back());
      search.leave_out();
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
