// One save, from a plan to a checkpoint that is there.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "api/checkpoint/directory.h"
#include "api/checkpoint/participants.h"
#include "api/checkpoint/save_plan.h"
#include "tessera/checkpoint.h"

namespace tessera::detail {

// The states of the default generators of this process, by device. As int64
// words, so that they can be gathered.
struct GeneratorState {
  std::string device;
  std::vector<int64_t> words;
};
std::vector<GeneratorState> generator_states();
// Sets them to what a manifest says that `rank` of `ranks` had.
void restore_generators(const Manifest& manifest, int64_t rank, int64_t ranks);

class SaveJob {
 public:
  // Plans, and agrees with the other ranks on what is to be saved. Pending
  // reductions are carried out. Communicates.
  SaveJob(std::string root, const TensorMap& tensors, SaveOptions options);

  // Copies what this process is to write, so that the program may go on while
  // another thread runs the job, over connections of its own.
  void go_to_background();
  // Writes and publishes. Communicates. Returns the path.
  std::string run();
  // What it makes, when it is done.
  std::string path() const { return step_path(root_, options_.step); }

 private:
  void write(std::vector<int64_t>& sums);
  void finish(const std::vector<int64_t>& sums);
  void check_files() const;
  int64_t number_of_save() const;

  const std::string root_;
  const SaveOptions options_;
  Participants participants_;
  SavePlan plan_;
  // By rank that lives here.
  std::map<int64_t, std::vector<at::Tensor>> pieces_;
  std::vector<GeneratorState> generators_;
};

}  // namespace tessera::detail
