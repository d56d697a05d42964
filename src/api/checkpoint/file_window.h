// A range of a file as memory, to take some of its bytes without copying all.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::detail {

class FileWindow {
 public:
  // Maps the range and brings in its pages, so that an error of the disk, or a
  // file that is too short, is known here instead of at the first access.
  FileWindow(int fd, int64_t offset, int64_t bytes);
  ~FileWindow();
  FileWindow(const FileWindow&) = delete;
  FileWindow& operator=(const FileWindow&) = delete;

  // Null where that did not work: read the range, which says why.
  const char* data() const { return data_; }

 private:
  void* mapped_;
  size_t mapped_bytes_;
  const char* data_ = nullptr;
};

}  // namespace tessera::detail
