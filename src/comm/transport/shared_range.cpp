#include "comm/transport/shared_range.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <sstream>

namespace tessera::detail {

namespace {

// What a range begins with: a number nobody else's has. A name may lead to
// another file, where process numbers are those of another container.
struct RangeHead {
  uint64_t mark;
};

static_assert(sizeof(RangeHead) <= SharedRange::kReserved);

}  // namespace

bool SharedRange::map(size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) return false;
  data_ = static_cast<char*>(memory);
  bytes_ = bytes;
  return true;
}

std::unique_ptr<SharedRange> SharedRange::create(size_t bytes) {
  std::unique_ptr<SharedRange> range(new SharedRange);
  range->file_ = memfd_create("tessera", MFD_CLOEXEC);
  if (range->file_ < 0 ||
      ftruncate(range->file_, static_cast<off_t>(bytes)) != 0 ||
      !range->map(bytes)) {
    return nullptr;
  }
  std::random_device random;
  const uint64_t mark = static_cast<uint64_t>(random()) << 32 | random();
  reinterpret_cast<RangeHead*>(range->data_)->mark = mark;
  std::ostringstream name;
  range->process_ = getpid();
  name << range->process_ << " " << range->file_ << " " << bytes << " " << mark;
  range->name_ = name.str();
  return range;
}

std::unique_ptr<SharedRange> SharedRange::open(const std::string& name) {
  std::istringstream text(name);
  int64_t process = 0;
  int file = -1;
  size_t bytes = 0;
  uint64_t mark = 0;
  if (!(text >> process >> file >> bytes >> mark)) {
    return nullptr;
  }
  std::unique_ptr<SharedRange> range(new SharedRange);
  const std::string path =
      "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  range->file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  if (range->file_ < 0 || fstat(range->file_, &status) != 0 ||
      status.st_size != static_cast<off_t>(bytes) || !range->map(bytes)) {
    return nullptr;
  }
  range->close_file();
  range->name_ = name;
  range->process_ = process;
  const bool same =
      reinterpret_cast<const RangeHead*>(range->data_)->mark == mark;
  return same ? std::move(range) : nullptr;
}

SharedRange::~SharedRange() {
  if (data_ != nullptr) munmap(data_, bytes_);
  close_file();
}

void SharedRange::close_file() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

}  // namespace tessera::detail
