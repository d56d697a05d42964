#include "api/checkpoint/file_window.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera::detail {

namespace {

// Linux 5.14 and later; others refuse it.
#ifdef MADV_POPULATE_READ
constexpr int kPopulateRead = MADV_POPULATE_READ;
#else
constexpr int kPopulateRead = 22;
#endif

// Whether the page cache has the whole range: then there is nothing to bring
// in, and pages are mapped faster by the first access. Linux 6.5 and later.
bool is_cached(int fd, int64_t offset, int64_t bytes, int64_t page) {
#ifdef SYS_cachestat
  constexpr long kCacheStat = SYS_cachestat;
#else
  constexpr long kCacheStat = 451;
#endif
  const uint64_t range[2] = {
      static_cast<uint64_t>(offset), static_cast<uint64_t>(bytes)};
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } pages{};
  const int64_t needed = (offset + bytes + page - 1) / page - offset / page;
  return ::syscall(kCacheStat, fd, range, &pages, 0) == 0 &&
         pages.cached == static_cast<uint64_t>(needed);
}

}  // namespace

FileWindow::FileWindow(int fd, int64_t offset, int64_t bytes) {
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t shift = offset % page;
  mapped_bytes_ = static_cast<size_t>(bytes + shift);
  mapped_ =
      ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_SHARED, fd, offset - shift);
  if (mapped_ == MAP_FAILED) return;
  if (!is_cached(fd, offset, bytes, page) &&
      ::madvise(mapped_, mapped_bytes_, kPopulateRead) != 0) {
    return;
  }
  data_ = static_cast<const char*>(mapped_) + shift;
}

FileWindow::~FileWindow() {
  if (mapped_ != MAP_FAILED) ::munmap(mapped_, mapped_bytes_);
}

}  // namespace tessera::detail
