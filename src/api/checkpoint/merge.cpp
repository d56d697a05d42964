// One safetensors file of a checkpoint, for programs of others.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <random>
#include <utility>
#include <vector>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/data_file.h"
#include "api/checkpoint/source.h"
#include "api/checkpoint/system_calls.h"
#include "tessera/checkpoint.h"

namespace tessera {

void merge(
    const std::string& path,
    const std::string& file,
    const std::string& prefix) {
  const auto info = checkpoint_info(path);
  PlainOptions options{.names = {}, .mmap = true};
  for (const auto& [name, tensor] : info.tensors) {
    if (name.starts_with(prefix) && name.size() > prefix.size()) {
      options.names.push_back(name);
    }
  }
  TORCH_CHECK_VALUE(
      !options.names.empty(),
      "[merge] ",
      path,
      " holds no tensor whose name begins with '",
      prefix,
      "'");
  TensorMap tensors;
  for (auto& [name, tensor] : load_plain(path, options)) {
    tensors[name.substr(prefix.size())] = tensor;
  }
  auto plan = detail::plan_save(tensors, 1, 0);
  std::vector<at::Tensor> pieces;
  for (const auto& piece : plan.files[0].pieces) {
    pieces.push_back(tensors.at(piece.name));
  }
  const auto unfinished =
      file + ".tmp-" + detail::hex16(std::random_device()());
  try {
    detail::write_data_file(unfinished, plan.files[0], pieces);
    detail::rename_path(unfinished, file);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
    throw;
  }
  auto parent = std::filesystem::absolute(file).parent_path();
  detail::sync_directory(parent.string());
}

}  // namespace tessera
