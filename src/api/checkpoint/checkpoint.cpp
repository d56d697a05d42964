// What users call on maps of tensors.
#include "tessera/checkpoint.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "api/checkpoint/directory.h"
#include "api/checkpoint/latest.h"
#include "api/checkpoint/load_into.h"
#include "api/checkpoint/mapped.h"
#include "api/checkpoint/pending_save.h"
#include "api/checkpoint/read_boxes.h"
#include "api/checkpoint/save_job.h"

namespace tessera {

std::string save(
    const std::string& root,
    const TensorMap& tensors,
    const SaveOptions& options) {
  detail::finish_pending_save();
  return detail::SaveJob(root, tensors, options).run();
}

PendingSave save_async(
    const std::string& root,
    const TensorMap& tensors,
    const SaveOptions& options) {
  detail::finish_pending_save();
  detail::SaveJob job(root, tensors, options);
  job.go_to_background();
  return detail::start_save(std::move(job));
}

CheckpointInfo load(
    const std::string& path,
    const TensorMap& tensors,
    const LoadOptions& options) {
  return detail::load_together(path, options, [&](const detail::Source&) {
    return detail::LoadRequest{tensors};
  });
}

std::optional<CheckpointInfo> load_latest(
    const std::string& root,
    const TensorMap& tensors,
    const LoadOptions& options) {
  return detail::load_latest_together(
      root, options, [&](const detail::Source&) {
        return detail::LoadRequest{tensors};
      });
}

CheckpointInfo load(
    const std::string& path,
    const TensorsFor& tensors_for,
    const LoadOptions& options) {
  return detail::load_together(
      path, options, [&](const detail::Source& source) {
        return detail::LoadRequest{tensors_for(source.path())};
      });
}

std::optional<CheckpointInfo> load_latest(
    const std::string& root,
    const TensorsFor& tensors_for,
    const LoadOptions& options) {
  return detail::load_latest_together(
      root, options, [&](const detail::Source& source) {
        return detail::LoadRequest{tensors_for(source.path())};
      });
}

bool any_rank(bool mine) {
  const auto participants = detail::Participants::of_world();
  const std::vector<int64_t> words(participants.here().size(), mine ? 1 : 0);
  const auto all =
      participants.gather(words, std::vector<int64_t>(participants.size(), 1));
  return std::find(all.begin(), all.end(), 1) != all.end();
}

TensorMap load_plain(const std::string& path, const PlainOptions& options) {
  const detail::Source source(path);
  const auto& saved = source.manifest().tensors;
  TensorMap out;
  TensorMap copied;
  const auto add = [&](const std::string& name,
                       const detail::SavedTensor& tensor) {
    if (options.mmap) {
      if (auto mapped = detail::map_tensor(source, name, tensor)) {
        out[name] = std::move(*mapped);
        return;
      }
    }
    out[name] = at::empty(tensor.shape, at::TensorOptions(tensor.dtype));
    copied[name] = out[name];
  };
  for (const auto& name : options.names) {
    const auto found = saved.find(name);
    TORCH_CHECK_VALUE(
        found != saved.end(),
        "[load_plain] ",
        path,
        " does not hold '",
        name,
        "'");
    add(name, found->second);
  }
  if (options.names.empty()) {
    for (const auto& [name, tensor] : saved) add(name, tensor);
  }
  detail::load_into(source, copied);
  return out;
}

CheckpointInfo checkpoint_info(const std::string& path) {
  return detail::Source(path).info();
}

std::vector<std::string> checkpoints_in(const std::string& root) {
  std::vector<std::string> paths;
  for (auto& found : detail::checkpoints_of(root)) {
    paths.push_back(std::move(found.path));
  }
  return paths;
}

}  // namespace tessera
