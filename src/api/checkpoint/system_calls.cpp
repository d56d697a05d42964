#include "api/checkpoint/system_calls.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace tessera::detail {

namespace {

std::atomic<SystemCalls*> replaced_calls = nullptr;

// Pages are written back while the next are copied: the sync at the end then
// waits for little.
constexpr off_t kWriteback = off_t{8} << 20;

int open_directory(const std::string& path) {
  return system_calls().open(
      path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
}

}  // namespace

int SystemCalls::open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}

ssize_t SystemCalls::pwrite(int fd, const void* data, size_t bytes, off_t at) {
  return ::pwrite(fd, data, bytes, at);
}

int SystemCalls::start_writeback(int fd, off_t at, off_t bytes) {
  return ::sync_file_range(fd, at, bytes, SYNC_FILE_RANGE_WRITE);
}

int SystemCalls::fsync(int fd) { return ::fsync(fd); }
int SystemCalls::close(int fd) { return ::close(fd); }

int SystemCalls::mkdir(const char* path, mode_t mode) {
  return ::mkdir(path, mode);
}

int SystemCalls::rename(const char* from, const char* to) {
  return std::rename(from, to);
}

int SystemCalls::exchange(const char* a, const char* b) {
  return static_cast<int>(
      ::syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE));
}

int SystemCalls::unlink(const char* path) { return ::unlink(path); }
int SystemCalls::rmdir(const char* path) { return ::rmdir(path); }
int SystemCalls::lock(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB); }
int SystemCalls::unlock(int fd) { return ::flock(fd, LOCK_UN); }

SystemCalls& system_calls() {
  static SystemCalls real;
  auto* replaced = replaced_calls.load();
  return replaced != nullptr ? *replaced : real;
}

void set_system_calls(SystemCalls* calls) { replaced_calls = calls; }

void throw_errno(const char* what, const std::string& path) {
  const int error = errno;
  TORCH_CHECK(
      false,
      "[save] cannot ",
      what,
      " ",
      path,
      ": ",
      std::generic_category().message(error));
}

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)),
      fd_(system_calls().open(
          path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
  if (fd_ < 0) throw_errno("create", path_);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) system_calls().close(fd_);
}

void OutputFile::append(const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = system_calls().pwrite(fd_, at, bytes, end_);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno("write", path_);
    if (written == 0) {
      errno = ENOSPC;
      throw_errno("write", path_);
    }
    at += written;
    end_ += written;
    bytes -= static_cast<size_t>(written);
  }
  if (end_ - started_ >= kWriteback) {
    // A hint: file systems that do not have it are none the worse.
    system_calls().start_writeback(fd_, started_, end_ - started_);
    started_ = end_;
  }
}

void OutputFile::finish() {
  if (system_calls().fsync(fd_) != 0) throw_errno("sync", path_);
  const int fd = std::exchange(fd_, -1);
  if (system_calls().close(fd) != 0) throw_errno("close", path_);
}

void make_directory(const std::string& path) {
  if (system_calls().mkdir(path.c_str(), 0755) == 0) return;
  if (errno == EEXIST && std::filesystem::is_directory(path)) return;
  throw_errno("make the directory", path);
}

void sync_directory(const std::string& path) {
  const int fd = open_directory(path);
  if (fd < 0) throw_errno("open the directory", path);
  const int result = system_calls().fsync(fd);
  const int error = errno;
  system_calls().close(fd);
  errno = error;
  // Some file systems have nothing to sync in a directory.
  if (result != 0 && error != EINVAL) throw_errno("sync the directory", path);
}

void rename_path(const std::string& from, const std::string& to) {
  if (system_calls().rename(from.c_str(), to.c_str()) != 0) {
    throw_errno("rename", from + " to " + to);
  }
}

void remove_tree(const std::string& path) {
  std::error_code error;
  std::vector<std::string> files;
  if (std::filesystem::is_directory(
          std::filesystem::symlink_status(path, error))) {
    std::filesystem::directory_iterator it(path, error);
    for (; !error && it != std::filesystem::directory_iterator();
         it.increment(error)) {
      files.push_back(it->path().string());
    }
    for (const auto& file : files) remove_tree(file);
    if (system_calls().rmdir(path.c_str()) != 0 && errno != ENOENT) {
      throw_errno("remove", path);
    }
    return;
  }
  if (system_calls().unlink(path.c_str()) != 0 && errno != ENOENT) {
    throw_errno("remove", path);
  }
}

}  // namespace tessera::detail
