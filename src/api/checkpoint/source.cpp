#include "api/checkpoint/source.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/directory.h"
#include "api/checkpoint/json.h"
#include "api/checkpoint/safetensors.h"

namespace tessera::detail {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxManifest = int64_t{4} << 30;
constexpr const char* kIndexName = "model.safetensors.index.json";

std::string error_text(int error) {
  return std::generic_category().message(error);
}

// A regular file, open for reading. Whatever else has the name (a pipe, a
// socket, a device) is refused, without waiting for somebody at its other end.
class OpenFile {
 public:
  // `what` names the file in errors.
  OpenFile(const std::string& path, const std::string& what)
      : fd_(::open(
            path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
    TORCH_CHECK(
        fd_ >= 0 || errno == ENXIO,
        "[load] cannot open ",
        what,
        ": ",
        error_text(errno));
    struct stat status {};
    const bool regular =
        fd_ >= 0 && ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode);
    bytes_ = status.st_size;
    if (regular) return;
    if (fd_ >= 0) ::close(fd_);
    TORCH_CHECK(
        false,
        "[load] cannot read ",
        what,
        ": it is a directory, a pipe, a socket or a device, not a file");
  }
  explicit OpenFile(const std::string& path) : OpenFile(path, path) {}
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  int64_t bytes() const { return bytes_; }

 private:
  int fd_;
  int64_t bytes_ = 0;
};

// False: the file ends before.
bool read_exactly(int fd, int64_t offset, void* into, int64_t bytes) {
  auto* at = static_cast<char*>(into);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, at, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      if (got == 0) errno = 0;
      return false;
    }
    at += got;
    offset += got;
    bytes -= got;
  }
  return true;
}

std::string why_short() {
  return errno == 0 ? "it is truncated" : error_text(errno);
}

}  // namespace

std::string read_whole(const std::string& path, int64_t most) {
  const OpenFile file(path);
  const int64_t bytes = file.bytes();
  TORCH_CHECK(
      bytes <= most, "[load] ", path, " has ", bytes, " bytes: too many");
  std::string text(bytes, '\0');
  TORCH_CHECK(
      read_exactly(file.fd(), 0, text.data(), bytes),
      "[load] cannot read ",
      path,
      ": ",
      why_short());
  return text;
}

std::optional<int64_t> saved_number(const std::string& checkpoint) {
  constexpr int64_t kStart = 512;
  std::string start;
  try {
    const OpenFile file(checkpoint + "/" + kManifestName);
    start.resize(std::min(kStart, file.bytes()));
    const auto bytes = static_cast<int64_t>(start.size());
    if (!read_exactly(file.fd(), 0, start.data(), bytes)) {
      return std::nullopt;
    }
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  return saved_number_in(start);
}

Source::Source(std::string path) : path_(std::move(path)) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  if (fs::is_directory(path_)) {
    directory_ = path_;
    if (fs::exists(directory_ + "/" + kManifestName)) {
      read_checkpoint();
    } else if (fs::exists(directory_ + "/" + kIndexName)) {
      read_index(kIndexName);
    } else if (fs::exists(directory_ + "/model.safetensors")) {
      add_safetensors("model.safetensors", nullptr);
    } else {
      const auto found = checkpoints_of(directory_);
      TORCH_CHECK_VALUE(
          found.empty(),
          "[load] ",
          path_,
          " is the directory of a run: load one of its checkpoints, such as ",
          found.empty() ? "" : found[0].path,
          ", or call load_latest");
      TORCH_CHECK(
          !fs::path(directory_).filename().string().starts_with("step_"),
          "[load] the checkpoint ",
          path_,
          " is damaged: its ",
          kManifestName,
          " is missing");
      TORCH_CHECK_VALUE(
          false,
          "[load] ",
          path_,
          " holds neither a checkpoint (",
          kManifestName,
          ") nor the safetensors of a model (",
          kIndexName,
          ", model.safetensors)");
    }
  } else {
    TORCH_CHECK_VALUE(fs::exists(path_), "[load] there is nothing at ", path_);
    directory_ = fs::path(path_).parent_path().string();
    if (directory_.empty()) directory_ = ".";
    add_safetensors(fs::path(path_).filename().string(), nullptr);
  }
  open_.assign(manifest_.files.size(), -1);
}

Source::~Source() {
  for (const int fd : open_) {
    if (fd >= 0) ::close(fd);
  }
}

void Source::read_checkpoint() {
  const auto path = directory_ + "/" + kManifestName;
  manifest_ = parse_manifest(read_whole(path, kMaxManifest), "[load] " + path);
  checked_ = true;
}

void Source::read_index(const std::string& index_name) {
  const auto path = directory_ + "/" + index_name;
  const auto where = "[load] " + path;
  const auto json = Json::parse(read_whole(path, kMaxManifest), where);
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& [name, file] : json.at("weight_map", where).object(where)) {
    const auto& file_name = file.string(where);
    TORCH_CHECK(
        !file_name.empty() && file_name.find('/') == std::string::npos &&
            file_name.find('\0') == std::string::npos && file_name[0] != '.',
        where,
        " names a file outside its directory: '",
        file_name,
        "'");
    names[file_name].push_back(name);
  }
  for (const auto& [file, tensors] : names) add_safetensors(file, &tensors);
}

void Source::add_safetensors(
    const std::string& name, const std::vector<std::string>* names) {
  const auto path = directory_ + "/" + name;
  const auto where = "[load] " + path;
  const OpenFile file(path);
  SavedFile saved{name, file.bytes()};
  std::string first8(std::min<int64_t>(8, saved.bytes), '\0');
  read_exactly(
      file.fd(), 0, first8.data(), static_cast<int64_t>(first8.size()));
  std::string json(safetensors_header_length(first8, saved.bytes, where), '\0');
  TORCH_CHECK(
      read_exactly(
          file.fd(), 8, json.data(), static_cast<int64_t>(json.size())),
      where,
      " cannot be read: ",
      why_short());
  auto header = parse_safetensors(json, saved.bytes, where);
  saved.header_bytes = header.data_begin;
  size_t wanted = 0;
  for (auto& entry : header.tensors) {
    if (names != nullptr &&
        std::find(names->begin(), names->end(), entry.name) == names->end()) {
      continue;
    }
    ++wanted;
    SavedTensor tensor{entry.dtype, entry.shape, "safetensors", {}};
    tensor.pieces.push_back(
        {static_cast<int64_t>(manifest_.files.size()),
         header.data_begin + entry.begin,
         whole_box(entry.shape),
         {}});
    TORCH_CHECK(
        manifest_.tensors.emplace(entry.name, std::move(tensor)).second,
        where,
        " holds the tensor '",
        entry.name,
        "', as another file does");
  }
  TORCH_CHECK(
      names == nullptr || wanted == names->size(),
      where,
      " does not hold all the tensors that the index says it does");
  manifest_.files.push_back(std::move(saved));
}

CheckpointInfo Source::info() const {
  CheckpointInfo info{
      path_, manifest_.step, manifest_.ranks, manifest_.values, {}, {}};
  for (const auto& [name, tensor] : manifest_.tensors) {
    info.tensors[name] = {
        {tensor.shape.begin(), tensor.shape.end()},
        tensor.dtype,
        tensor.layout};
  }
  return info;
}

std::string Source::file_path(int64_t index) const {
  return directory_ + "/" + manifest_.files[index].name;
}

int Source::file(int64_t index, const std::string& tensor) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (open_[index] >= 0) return open_[index];
  const auto& saved = manifest_.files[index];
  const auto path = file_path(index);
  const auto what = path + ", which holds a part of tensor '" + tensor + "'";
  OpenFile file(path, what);
  TORCH_CHECK(
      file.bytes() == saved.bytes,
      "[load] ",
      what,
      ", has ",
      file.bytes(),
      " bytes where ",
      saved.bytes,
      " were written: it is truncated or of another checkpoint");
  if (checked_) {
    std::string header(saved.header_bytes, '\0');
    TORCH_CHECK(
        read_exactly(file.fd(), 0, header.data(), saved.header_bytes) &&
            checksum(header) == saved.header_checksum,
        "[load] ",
        what,
        ", is damaged or of another checkpoint: its header has another "
        "checksum");
  }
  return open_[index] = file.release();
}

void Source::read(
    int64_t file,
    int64_t offset,
    void* into,
    int64_t bytes,
    const std::string& tensor) const {
  const int fd = this->file(file, tensor);
  TORCH_CHECK(
      read_exactly(fd, offset, into, bytes),
      "[load] cannot read ",
      bytes,
      " bytes of tensor '",
      tensor,
      "' from ",
      file_path(file),
      ": ",
      why_short());
}

}  // namespace tessera::detail
