// A range of a file as memory, to take some of its bytes without copying all.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>

namespace tessera::detail {

// Whether the file has at least `end` bytes now. What is mapped behind the end
// of a file reads as zeros up to the end of the page.
bool reaches(int fd, int64_t end);

class FileWindow {
 public:
  // Maps the range and brings in its pages, so that an error of the disk, or a
  // file that is too short, is known here instead of at the first access.
  FileWindow(int fd, int64_t offset, int64_t bytes);
  ~FileWindow();
  FileWindow(const FileWindow&) = delete;
  FileWindow& operator=(const FileWindow&) = delete;

  // Calls `body` with bytes [from, to) of the range, and returns whether they
  // were those of the file. False where the range could not be mapped, or the
  // file was truncated meanwhile: read it, which says why. Requires of `body`
  // what survives_bus_error does.
  bool take(int64_t from, int64_t to, c10::function_ref<void(const char*)> body)
      const;

 private:
  int fd_;
  int64_t offset_;
  void* mapped_;
  size_t mapped_bytes_;
  const char* data_ = nullptr;
};

}  // namespace tessera::detail
