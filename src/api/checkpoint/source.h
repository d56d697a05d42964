// Where tensors are loaded from: a checkpoint, a safetensors file, or the
// safetensors of a Hugging Face model. All read alike, by a manifest; those of
// others have no checksums.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/checkpoint/manifest.h"
#include "tessera/checkpoint.h"

namespace tessera::detail {

class Source {
 public:
  // Reads the manifest, or the headers. Throws c10::ValueError where `path` is
  // nothing that can be loaded, c10::Error where it is damaged.
  explicit Source(std::string path);
  ~Source();
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  CheckpointInfo info() const;

  // A descriptor of a file, open for reading for as long as this lives. At the
  // first call its size and header are checked; errors name `tensor`. Safe to
  // call from several threads.
  int file(int64_t index, const std::string& tensor) const;
  std::string file_path(int64_t index) const;

  // Reads exactly `bytes` bytes. Throws c10::Error, which names file and
  // tensor, where there are fewer.
  void read(
      int64_t file,
      int64_t offset,
      void* into,
      int64_t bytes,
      const std::string& tensor) const;

 private:
  void read_checkpoint();
  void read_index(const std::string& index_name);
  // The tensors of a safetensors file; those named in `names` if it is given.
  void add_safetensors(
      const std::string& name, const std::vector<std::string>* names);

  std::string path_;
  std::string directory_;
  Manifest manifest_;
  bool checked_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<int> open_;
};

// All bytes of a file of at most `most` bytes. Throws c10::Error.
std::string read_whole(const std::string& path, int64_t most);

// Which save of its run a checkpoint says it is, from the start of its
// manifest, which is not verified. Nullopt where there is none.
std::optional<int64_t> saved_number(const std::string& checkpoint);

}  // namespace tessera::detail
