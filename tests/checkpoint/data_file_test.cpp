// How the file of a rank is written.
#include "api/checkpoint/data_file.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/system_calls.h"
#include "testing/run_directory.h"

namespace tessera::detail {
namespace data_file_test {

constexpr int64_t kBlock = int64_t{2} << 20;

// Notes where writes begin and end.
class NotedCalls : public SystemCalls {
 public:
  NotedCalls() { set_system_calls(this); }
  ~NotedCalls() override { set_system_calls(nullptr); }

  ssize_t pwrite(int fd, const void* data, size_t n, off_t at) override {
    const auto written = SystemCalls::pwrite(fd, data, n, at);
    if (written > 0) writes.emplace_back(at, at + written);
    return written;
  }

  std::vector<std::pair<int64_t, int64_t>> writes;
};

class DataFile : public ::testing::Test {
 protected:
  const testing::RunDirectory run_;
};

std::string bytes_of(const at::Tensor& piece) {
  const auto packed = piece.contiguous();
  return {static_cast<const char*>(packed.const_data_ptr()), packed.nbytes()};
}

// Blocks that begin in a piece and end in it are written by one call each, so
// that the page cache may hold them as huge pages; chunks of a MiB from the
// start of a piece have checksums.
TEST_F(DataFile, BlocksAreWrittenWhole) {
  run_.once([&] {
    std::filesystem::create_directories(run_.path());
    const std::vector<at::Tensor> pieces{
        at::arange(1'700'001),                      // 13 MiB and some
        at::arange(7),                              // less than a chunk
        at::arange(600'000).view({600, 1000}).t(),  // copied by rows
        at::arange(1'310'720)};                     // whole chunks
    PlannedFile plan;
    plan.header = std::string(4096, 'h');
    std::vector<std::pair<int64_t, int64_t>> ranges;  // of the pieces
    auto at = static_cast<int64_t>(plan.header.size());
    std::string expected = plan.header;
    std::vector<int64_t> sums;
    for (const auto& piece : pieces) {
      const auto bytes = bytes_of(piece);
      ranges.emplace_back(at, at + static_cast<int64_t>(bytes.size()));
      at = ranges.back().second;
      expected += bytes;
      for (size_t c = 0; c < bytes.size(); c += kChunkBytes) {
        sums.push_back(static_cast<int64_t>(
            checksum(std::string_view(bytes).substr(c, kChunkBytes))));
      }
    }
    NotedCalls calls;
    EXPECT_EQ(write_data_file(run_ / "file", plan, pieces), sums);
    EXPECT_TRUE(testing::read_text(run_ / "file") == expected);
    int64_t whole = 0;
    for (const size_t i : {size_t{0}, size_t{3}}) {
      const auto [begin, end] = ranges[i];
      for (int64_t block = (begin + kBlock - 1) / kBlock * kBlock;
           block + kBlock <= end;
           block += kBlock, ++whole) {
        const auto covers = [&](const auto& write) {
          return write.first <= block && write.second >= block + kBlock;
        };
        EXPECT_EQ(
            std::count_if(calls.writes.begin(), calls.writes.end(), covers), 1)
            << block;
      }
    }
    EXPECT_GE(whole, 8);
  });
}

}  // namespace data_file_test
}  // namespace tessera::detail
