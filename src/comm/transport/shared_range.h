// Memory that processes of one machine map together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera::detail {

// What one rank writes often stands in a line of its own.
constexpr size_t kCacheLine = 64;

class SharedRange {
 public:
  // The first bytes of a range are not for use.
  static constexpr size_t kReserved = 64;

  // Null where the system gives no such memory.
  static std::unique_ptr<SharedRange> create(size_t bytes);
  // Maps another process's by its name. Null where that cannot be reached, as
  // on another machine or in another container. Keeps no file open.
  static std::unique_ptr<SharedRange> open(const std::string& name);
  ~SharedRange();
  SharedRange(const SharedRange&) = delete;
  SharedRange& operator=(const SharedRange&) = delete;

  // By which processes of this machine open it, until close_file().
  const std::string& name() const { return name_; }
  void close_file();
  // The id of the process whose it is.
  int64_t process() const { return process_; }
  // All zeros at first, but for what is reserved.
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  SharedRange() = default;
  // Makes `bytes` bytes of the file memory. False if that cannot be.
  bool map(size_t bytes);

  std::string name_;
  int64_t process_ = 0;
  char* data_ = nullptr;
  size_t bytes_ = 0;
  int file_ = -1;
};

}  // namespace tessera::detail
