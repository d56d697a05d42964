// Safetensors files of a checkpoint, for programs of others: one, or several
// with an index, as Hugging Face's libraries write and read them.
#include <c10/util/Exception.h>

#include <cstdio>
#include <filesystem>
#include <random>
#include <utility>
#include <vector>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/data_file.h"
#include "api/checkpoint/json.h"
#include "api/checkpoint/source.h"
#include "api/checkpoint/system_calls.h"
#include "tessera/checkpoint.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;

constexpr const char* kExtension = ".safetensors";

// Tensors by the names that they are to have, each mapped where it can be.
TensorMap named_tensors(const std::string& path, const std::string& prefix) {
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
  return tensors;
}

// In the order of names, each group of at most `most` bytes or one tensor.
std::vector<TensorMap> in_groups(const TensorMap& tensors, int64_t most) {
  std::vector<TensorMap> groups(1);
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto more = static_cast<int64_t>(tensor.nbytes());
    if (most > 0 && !groups.back().empty() && more > most - bytes) {
      groups.emplace_back();
      bytes = 0;
    }
    groups.back()[name] = tensor;
    bytes += more;
  }
  return groups;
}

// "model-00002-of-00003.safetensors" for "model.safetensors".
std::string numbered(const std::string& file, size_t index, size_t count) {
  char number[32];
  std::snprintf(number, sizeof(number), "-%05zu-of-%05zu", index + 1, count);
  return file.substr(0, file.size() - std::string(kExtension).size()) + number +
         kExtension;
}

std::string index_of(
    const std::vector<TensorMap>& groups, const std::string& name) {
  int64_t total = 0;
  std::string map;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const auto& [tensor_name, tensor] : groups[i]) {
      total += static_cast<int64_t>(tensor.nbytes());
      map += (map.empty() ? "\n    " : ",\n    ") +
             detail::json_string(tensor_name) + ": " +
             detail::json_string(numbered(name, i, groups.size()));
    }
  }
  return "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(total) +
         "\n  },\n  \"weight_map\": {" + map + "\n  }\n}\n";
}

// Files that are written under other names, and get theirs when all are there.
class NewFiles {
 public:
  ~NewFiles() {
    for (const auto& [unfinished, file] : files_) {
      std::error_code ignored;
      fs::remove(unfinished, ignored);
    }
  }

  // Where to write what is to be `file`.
  std::string add(const std::string& file) {
    files_.emplace_back(
        file + ".tmp-" + detail::hex16(std::random_device()()), file);
    return files_.back().first;
  }

  void publish() {
    for (const auto& [unfinished, file] : files_) {
      detail::rename_path(unfinished, file);
    }
    files_.clear();
  }

 private:
  std::vector<std::pair<std::string, std::string>> files_;
};

void write_tensors(const std::string& file, const TensorMap& tensors) {
  const auto plan = detail::plan_save(tensors, 1, 0);
  std::vector<at::Tensor> pieces;
  for (const auto& piece : plan.files[0].pieces) {
    pieces.push_back(tensors.at(piece.name));
  }
  detail::write_data_file(file, plan.files[0], pieces);
}

}  // namespace

std::vector<std::string> merge(
    const std::string& path,
    const std::string& file,
    const MergeOptions& options) {
  TORCH_CHECK_VALUE(
      options.max_file_bytes >= 0,
      "[merge] expected max_file_bytes of 0 (no limit) or more, but got ",
      options.max_file_bytes);
  const auto groups =
      in_groups(named_tensors(path, options.prefix), options.max_file_bytes);
  const bool several = groups.size() > 1;
  TORCH_CHECK_VALUE(
      !several || file.ends_with(kExtension),
      "[merge] expected a name that ends in .safetensors, of which those of "
      "several files are made, but got '",
      file,
      "'");
  const auto index = file + ".index.json";
  std::vector<std::string> written;
  NewFiles files;
  for (size_t i = 0; i < groups.size(); ++i) {
    written.push_back(several ? numbered(file, i, groups.size()) : file);
    write_tensors(files.add(written.back()), groups[i]);
  }
  if (several) {
    const auto text = index_of(groups, fs::path(file).filename().string());
    written.push_back(index);
    // The last to get its name: whoever finds it finds the others.
    detail::OutputFile out(files.add(index));
    out.append(text.data(), text.size());
    out.finish();
  }
  files.publish();
  // What an earlier call made of the same name would be found instead.
  detail::remove_tree(several ? file : index);
  detail::sync_directory(fs::absolute(file).parent_path().string());
  return written;
}

}  // namespace tessera
