#include "api/checkpoint/file_window.h"

#include <sys/mman.h>
#include <unistd.h>

namespace tessera::detail {

namespace {

// Linux 5.14 and later; others refuse it.
#ifdef MADV_POPULATE_READ
constexpr int kPopulateRead = MADV_POPULATE_READ;
#else
constexpr int kPopulateRead = 22;
#endif

}  // namespace

FileWindow::FileWindow(int fd, int64_t offset, int64_t bytes) {
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t shift = offset % page;
  mapped_bytes_ = static_cast<size_t>(bytes + shift);
  mapped_ =
      ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_SHARED, fd, offset - shift);
  if (mapped_ == MAP_FAILED) return;
  if (::madvise(mapped_, mapped_bytes_, kPopulateRead) != 0) return;
  data_ = static_cast<const char*>(mapped_) + shift;
}

FileWindow::~FileWindow() {
  if (mapped_ != MAP_FAILED) ::munmap(mapped_, mapped_bytes_);
}

}  // namespace tessera::detail
