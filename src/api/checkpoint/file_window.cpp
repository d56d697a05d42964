#include "api/checkpoint/file_window.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api/checkpoint/bus_error.h"

namespace tessera::detail {

namespace {

// Linux 5.14 and later; others refuse it.
#ifdef MADV_POPULATE_READ
constexpr int kPopulateRead = MADV_POPULATE_READ;
#else
constexpr int kPopulateRead = 22;
#endif

constexpr int64_t kHugePage = int64_t{2} << 20;

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

bool reaches(int fd, int64_t end) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && status.st_size >= end;
}

FileWindow::FileWindow(int fd, int64_t offset, int64_t bytes)
    : fd_(fd), offset_(offset) {
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  // Whole huge pages: those that the page cache has are mapped at once.
  const int64_t begin = offset / kHugePage * kHugePage;
  const int64_t end = (offset + bytes + kHugePage - 1) / kHugePage * kHugePage;
  mapped_bytes_ = static_cast<size_t>(end - begin);
  mapped_ = ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_SHARED, fd, begin);
  if (mapped_ == MAP_FAILED) return;
  char* const start = static_cast<char*>(mapped_) + (offset - begin);
  if (!is_cached(fd, offset, bytes, page)) {
    const int64_t shift = offset % page;
    if (::madvise(start - shift, bytes + shift, kPopulateRead) != 0) return;
  }
  data_ = start;
}

FileWindow::~FileWindow() {
  if (mapped_ != MAP_FAILED) ::munmap(mapped_, mapped_bytes_);
}

bool FileWindow::take(
    int64_t from, int64_t to, c10::function_ref<void(const char*)> body) const {
  return data_ != nullptr && survives_bus_error([&] { body(data_ + from); }) &&
         reaches(fd_, offset_ + to);
}

}  // namespace tessera::detail
