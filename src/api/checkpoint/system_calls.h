// The system calls by which a checkpoint is written: the only access to the
// disk, so that tests can let each of them fail, stop, or lose what was not
// synced.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace tessera::detail {

// Each as its namesake: -1 and errno on failure.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;

  virtual int open(const char* path, int flags, mode_t mode);
  virtual ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at);
  // Starts to write a range back to the disk, without waiting.
  virtual int start_writeback(int fd, off_t at, off_t bytes);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rename(const char* from, const char* to);
  // Lets two names change places in one step. ENOSYS or EINVAL where the file
  // system cannot.
  virtual int exchange(const char* a, const char* b);
  virtual int unlink(const char* path);
  virtual int rmdir(const char* path);
  // An exclusive lock, without waiting.
  virtual int lock(int fd);
  virtual int unlock(int fd);
};

SystemCalls& system_calls();
// Takes the place of the system calls of this process; null: the real ones.
// For tests, while nothing is being saved.
void set_system_calls(SystemCalls* calls);

// Throws c10::Error: "[save] cannot <what> <path>: <what errno says>".
[[noreturn]] void throw_errno(const char* what, const std::string& path);

// A new file that is written at given offsets, from start to end.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(const void* data, size_t bytes);
  // How many bytes it has.
  off_t end() const { return end_; }
  // Waits until everything is on the disk, and closes the file.
  void finish();

 private:
  const std::string path_;
  int fd_;
  off_t end_ = 0;
  off_t started_ = 0;
};

// Each throws c10::Error on failure. An existing directory is no failure.
void make_directory(const std::string& path);
void sync_directory(const std::string& path);
void rename_path(const std::string& from, const std::string& to);
// Removes a directory and the files in it, or a file. Nothing there: done.
void remove_tree(const std::string& path);

}  // namespace tessera::detail
