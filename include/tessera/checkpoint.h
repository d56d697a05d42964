// Checkpoints: saved by any number of ranks, loaded by any other number, into
// any layout. Files are safetensors with a manifest in JSON beside them.
//
//   ts::save("run", *model, {&optimizer}, {.step = 100, .keep = 3});
//   ...
//   if (auto found = ts::load_latest("run", *model, {&optimizer})) {
//     step = found->step;
//   }
//
// Each rank writes and reads only what it holds. A checkpoint appears whole, by
// one rename, or not at all; every byte has a checksum that loading verifies.
// See docs/checkpoints.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/export.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace tessera {

// Tensors by name, distributed or plain.
using TensorMap = std::map<std::string, at::Tensor>;
using Optimizers = std::vector<torch::optim::Optimizer*>;

struct SaveOptions {
  // The checkpoint is the directory <root>/step_<step>. One that is there is
  // replaced.
  int64_t step = 0;
  // How many checkpoints stay in the directory, this one included: those that
  // were saved last, whatever their steps; 0: all.
  int64_t keep = 0;
  // Small values that belong to the checkpoint: the position in the data, the
  // state of a scheduler. Those of rank 0 are saved.
  std::map<std::string, std::string> values = {};
  // Stands before the names of a module's tensors: "model." for what Python
  // saves as {"model": model}.
  std::string prefix = {};
  // Whether it is the newest of the directory from now on. False: a checkpoint
  // that takes the place of one of the same step is as new as that was, as it
  // is the same state in other files.
  bool newest = true;
};

struct LoadOptions {
  // Whether a module must have exactly the tensors that were saved for it, and
  // an optimizer must have been saved.
  bool strict = true;
  // Whether torch's default generators go on from where they were.
  bool generators = false;
  // As in SaveOptions.
  std::string prefix = {};
};

struct SavedTensorInfo {
  std::vector<int64_t> shape;
  c10::ScalarType dtype;
  // How it was laid out when it was saved, for people: "[S(0)] on 4".
  std::string layout;
};

// What a checkpoint says of itself.
struct CheckpointInfo {
  std::string path;
  int64_t step = 0;
  // How many ranks saved it.
  int64_t ranks = 1;
  std::map<std::string, std::string> values;
  std::map<std::string, SavedTensorInfo> tensors;
  // Of load_latest: newer ones that are damaged, and what is wrong with them.
  std::vector<std::string> skipped;
};

// Saves tensors as the checkpoint of a step in the directory `root`, which is
// made if need be. Every rank of the world calls it with the same names and
// layouts; without a world this process saves alone. Of a plain tensor rank 0's
// value is saved, of a slice of a mesh that of the first row. Communicates.
// Returns the path of the checkpoint. Throws on every rank, and leaves
// everything that was there, if a rank fails: c10::ValueError where the ranks
// or a name do not fit, c10::NotImplementedError for a tensor that safetensors
// cannot hold, c10::Error where a file cannot be written or a rank is lost.
TESSERA_API std::string save(
    const std::string& root,
    const TensorMap& tensors,
    const SaveOptions& options = {});

// The parameters and buffers of a module, and the state of its optimizers by
// the names of the parameters. Throws c10::NotImplementedError for an optimizer
// that is none of torch's.
TESSERA_API std::string save(
    const std::string& root,
    const torch::nn::Module& module,
    const Optimizers& optimizers = {},
    const SaveOptions& options = {});

// A save that goes on in the background. The end of the world waits for it, and
// so does the end of the program, which prints an error that nobody has been
// told of.
class TESSERA_API PendingSave {
 public:
  // Waits until the checkpoint is there. Returns its path, or throws what went
  // wrong; a second call returns or throws the same. Throws c10::Error in a
  // process that was forked while the save was under way.
  std::string wait();
  // Whether it is there, or has failed.
  bool done() const;

  struct Work;
  explicit PendingSave(std::shared_ptr<Work> work);

 private:
  std::shared_ptr<Work> work_;
};

// As save, but returns as soon as the tensors are copied. One save is under way
// at a time: the next save or load of this process waits for it, and throws
// what went wrong with it unless wait() has done so. Every rank calls it.
TESSERA_API PendingSave save_async(
    const std::string& root,
    const TensorMap& tensors,
    const SaveOptions& options = {});
TESSERA_API PendingSave save_async(
    const std::string& root,
    const torch::nn::Module& module,
    const Optimizers& optimizers = {},
    const SaveOptions& options = {});

// Loads into tensors of any layout, in place: each rank reads only what it
// holds. `path` is a checkpoint, a safetensors file, or a directory with the
// safetensors of a Hugging Face model. What is saved in another dtype is
// converted. Every rank of the world calls it. Communicates (agreement on
// errors). Throws on every rank: c10::ValueError where a name is missing or a
// shape differs, c10::Error, naming file and tensor, where a file is damaged,
// truncated, missing or of another checkpoint.
TESSERA_API CheckpointInfo load(
    const std::string& path,
    const TensorMap& tensors,
    const LoadOptions& options = {});
TESSERA_API CheckpointInfo load(
    const std::string& path,
    torch::nn::Module& module,
    const Optimizers& optimizers = {},
    const LoadOptions& options = {});

// Loads the newest whole checkpoint of the directory `root`, which is the one
// that was saved last: where one is damaged, the one before it, with a warning.
// Nullopt where there is none at all. Other processes may save there meanwhile:
// it takes no lock, and chooses again where they replace or remove what it
// reads. Restores generators, unless the options say otherwise. Throws
// c10::ValueError where `root` is not a directory, c10::Error where all
// checkpoints are damaged. Communicates.
TESSERA_API std::optional<CheckpointInfo> load_latest(
    const std::string& root,
    const TensorMap& tensors,
    const LoadOptions& options = {.generators = true});
TESSERA_API std::optional<CheckpointInfo> load_latest(
    const std::string& root,
    torch::nn::Module& module,
    const Optimizers& optimizers = {},
    const LoadOptions& options = {.generators = true});

// As above, into what `tensors_for` gives for the path of the checkpoint: for
// programs whose tensors depend on what was saved. It must not communicate.
using TensorsFor = std::function<TensorMap(const std::string& path)>;
TESSERA_API CheckpointInfo load(
    const std::string& path,
    const TensorsFor& tensors_for,
    const LoadOptions& options = {});
TESSERA_API std::optional<CheckpointInfo> load_latest(
    const std::string& root,
    const TensorsFor& tensors_for,
    const LoadOptions& options = {.generators = true});

struct PlainOptions {
  // Only these tensors; empty: all.
  std::vector<std::string> names = {};
  // Map tensors that lie in the files as they would in memory, instead of
  // copying them. Writes into them do not reach the files. The files must keep
  // their sizes while the tensors live: an access to what was truncated ends
  // the program (SIGBUS). To replace or remove them is safe.
  bool mmap = false;
};

// The tensors of a checkpoint as plain ones, whole, in this process. Needs no
// world and does not communicate.
TESSERA_API TensorMap
load_plain(const std::string& path, const PlainOptions& options = {});

struct MergeOptions {
  // Only tensors whose names begin with this, which they lose.
  std::string prefix = "";
  // 0: one file. Otherwise no file has tensors of more bytes, but for a tensor
  // that alone has more.
  int64_t max_file_bytes = 0;
};

// Writes a checkpoint as one safetensors file; or, where `max_file_bytes` needs
// several, as model-00001-of-00003.safetensors and so on with
// model.safetensors.index.json, if `file` is model.safetensors. Hugging Face's
// libraries read both. Files appear whole or not at all, the index last. A
// single file or an index that an earlier call has made is removed where this
// one makes the other. Returns the paths. Does not communicate.
TESSERA_API std::vector<std::string> merge(
    const std::string& path,
    const std::string& file,
    const MergeOptions& options = {});

// What a checkpoint says of itself. Reads the manifest only.
TESSERA_API CheckpointInfo checkpoint_info(const std::string& path);

// The paths of the checkpoints in a directory, the last saved first, whole or
// not.
TESSERA_API std::vector<std::string> checkpoints_in(const std::string& root);

// Whether any rank of the world says so. Communicates.
TESSERA_API bool any_rank(bool mine);

struct TrainingLoopOptions {
  // Steps in all, those before a restart included.
  int64_t total = 0;
  // A checkpoint every so many steps, and one at the end.
  int64_t every = 100;
  int64_t keep = 2;
  bool asynchronous = false;
};

// A loop that starts from the latest whole checkpoint, saves as it goes, and on
// SIGTERM, to whichever rank, saves and ends:
//
//   ts::TrainingLoop loop("run", *model, {&optimizer}, {.total = 10'000});
//   while (loop.next()) train(batch(loop.step()));
//
// Under torchrun --max-restarts a rank that dies costs the steps since the last
// checkpoint. Every rank runs it. Restores generators. Communicates.
class TESSERA_API TrainingLoop {
 public:
  TrainingLoop(
      std::string root,
      torch::nn::Module& module,
      Optimizers optimizers,
      TrainingLoopOptions options);
  // Waits for a save that is under way.
  ~TrainingLoop();
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  // Whether there is another step to do. Saves after the one before, where it
  // is due.
  bool next();
  // The step to do, from 0.
  int64_t step() const { return step_; }
  // Whether the loop ended because of SIGTERM.
  bool preempted() const { return preempted_; }

 private:
  void save_step();

  const std::string root_;
  torch::nn::Module& module_;
  const Optimizers optimizers_;
  const TrainingLoopOptions options_;
  int64_t step_ = 0;
  bool started_ = false;
  bool preempted_ = false;
};

}  // namespace tessera
