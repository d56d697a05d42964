// The directory of a run: a checkpoint a step, and what dead saves left.
//
//   run/step_100/manifest.json        a whole checkpoint
//   run/step_100/data_0000.safetensors
//   run/step_200.tmp-<id>/            being written, or left by a dead save
//   run/step_100.old-<id>/            about to be replaced by step_100
//   run/.lock                         held by the process that saves
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::detail {

inline constexpr const char* kManifestName = "manifest.json";

std::string step_path(const std::string& root, int64_t step);
// Where a checkpoint is written before it is one.
std::string unfinished_path(const std::string& root, int64_t step, uint64_t id);

// A directory that claims to be a whole checkpoint.
struct SavedDirectory {
  std::string path;
  int64_t step = 0;
  // Which save of the run it is, from 1; 0 for those of earlier versions, which
  // do not say. Where it is damaged, that of the one before it by step.
  int64_t saved = 0;
};

// The checkpoints of a run, the last saved first. One that an interrupted
// replacement has moved away is among them. Takes no lock and changes nothing:
// any of them may be gone when it is read. Empty where there is no such
// directory.
std::vector<SavedDirectory> checkpoints_of(const std::string& root);

// One process at a time saves in a directory. Released at the end, or when the
// process dies; a process that is forked from it meanwhile does not hold it.
// Throws c10::Error if another one holds it.
class SaveLock {
 public:
  explicit SaveLock(const std::string& root);
  ~SaveLock();
  SaveLock(const SaveLock&) = delete;
  SaveLock& operator=(const SaveLock&) = delete;

 private:
  int fd_ = -1;
  // A child that finds the lock in its memory has not taken it.
  const uint64_t forks_;
};

// Makes the directory and those above it, synced.
void make_root(const std::string& root);
// Puts back what an interrupted replacement has moved away. Requires the lock.
void recover(const std::string& root);
// Removes what dead saves have left. Requires the lock.
void remove_leftovers(const std::string& root);
// The one step that makes a written directory the checkpoint of `step`; one
// that was there before stays until then. Requires the lock.
void publish(const std::string& root, int64_t step, uint64_t id);
// Removes all but the checkpoint of `step` and the `keep` - 1 others that were
// saved last; 0: none. Requires the lock.
void remove_old(const std::string& root, int64_t keep, int64_t step);

}  // namespace tessera::detail
