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

// The steps of which there is a directory, the newest first. Empty where there
// is no such directory.
std::vector<int64_t> steps_in(const std::string& root);

// One process at a time saves in a directory. Released at the end, or when the
// process dies. Throws c10::Error if another one holds it.
class SaveLock {
 public:
  explicit SaveLock(const std::string& root);
  ~SaveLock();
  SaveLock(const SaveLock&) = delete;
  SaveLock& operator=(const SaveLock&) = delete;

 private:
  int fd_;
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
// Removes all but the newest `keep` checkpoints and that of `step`; 0: none.
void remove_old(const std::string& root, int64_t keep, int64_t step);

}  // namespace tessera::detail
