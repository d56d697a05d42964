// Bad indices on a GPU: found by the kernel that reads them, raised later.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <string>

#include "kernels/bag/bag.h"
#include "kernels/device_errors.h"
#include "kernels/gather/gather.h"
#include "kernels/lookup/embedding.h"

namespace tessera::detail {
namespace gpu_errors_test {

at::Tensor longs(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong).cuda();
}

// Whether calls return only when their kernels have run.
bool launches_block() {
  const char* const blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  return blocking != nullptr && std::string(blocking) == "1";
}

// What is raised behind a point that waits.
template <class Error, class Call>
std::string raised(const Call& call) {
  try {
    call();
    torch::cuda::synchronize();
    raise_device_errors();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}

TEST(GpuErrors, NameTheFirstAndComeOnce) {
  const at::Tensor table = at::ones({10, 4}).cuda();
  at::Tensor out;
  std::vector<int64_t> many(100'000, 3);
  for (const int64_t place : {70'000, 31, 99'999, 30'000}) {
    many[place] = 1'000 + place;
  }
  const std::string text = raised<c10::IndexError>(
      [&] { out = lookup_rows(table, longs(many), 0, 10); });
  EXPECT_NE(
      text.find("[embedding] index 1031 is outside the table of 10 rows; "
                "expected 0 to 9"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("CUDA_LAUNCH_BLOCKING=1"), std::string::npos) << text;
  // Good entries are right, bad ones are zeros.
  if (!launches_block()) {
    EXPECT_EQ(out.sum().item<double>(), 4.0 * (100'000 - 4));
  }
  EXPECT_EQ(
      raised<c10::IndexError>(
          [&] { lookup_rows(table, longs({1, 2}), 0, 10); }),
      "nothing");
}

TEST(GpuErrors, AllBad) {
  const at::Tensor table = at::ones({10, 4}).cuda();
  const std::string text = raised<c10::IndexError>([&] {
    lookup_rows(
        table, at::arange(3'000'000, at::kLong).neg().sub(1).cuda(), 0, 10);
  });
  EXPECT_NE(text.find("index -1 is"), std::string::npos) << text;
}

// Or, where launches block, the lookup itself.
TEST(GpuErrors, TheNextLookupRaisesIt) {
  const at::Tensor table = at::ones({10, 4}).cuda();
  const auto bad = [&] { lookup_rows(table, longs({1, 10}), 0, 10); };
  if (launches_block()) {
    EXPECT_THROW(bad(), c10::IndexError);
  } else {
    bad();
    torch::cuda::synchronize();
    EXPECT_THROW(lookup_rows(table, longs({1}), 0, 10), c10::IndexError);
  }
  lookup_rows(table, longs({1}), 0, 10);
}

TEST(GpuErrors, OfBags) {
  const at::Tensor table = at::ones({10, 4}).cuda();
  const auto pool = [&](const at::Tensor& indices, const at::Tensor& offsets) {
    embedding_bag_part(table, {0, 10}, {indices, offsets}, BagMode::kSum);
  };
  EXPECT_NE(
      raised<c10::IndexError>([&] {
        pool(longs({1, -4, 3}), longs({0, 2}));
      }).find("[embedding_bag] index -4 is outside the table of 10 rows"),
      std::string::npos);
  EXPECT_NE(
      raised<c10::ValueError>([&] {
        pool(longs({1, 4, 3}), longs({1, 2}));
      }).find("[embedding_bag] offsets must start at 0, not 1"),
      std::string::npos);
  EXPECT_NE(
      raised<c10::ValueError>([&] {
        pool(longs({1, 4, 3}), longs({0, 2, 1}));
      }).find("but 2 is followed by 1"),
      std::string::npos);
  EXPECT_NE(
      raised<c10::ValueError>([&] {
        pool(longs({1, 4, 3}), longs({0, 7}));
      }).find("indices, 3, but 0 is followed by 7"),
      std::string::npos);
  EXPECT_NE(
      raised<c10::IndexError>([&] {
        checked_bag_bounds(
            table, 10, {longs({1, 11}), longs({0})}, BagMode::kSum);
      }).find("[embedding_bag] index 11 is outside the table of 10 rows"),
      std::string::npos);
}

TEST(GpuErrors, OfGather) {
  const at::Tensor self = at::ones({3, 4}).cuda();
  EXPECT_NE(
      raised<c10::IndexError>([&] {
        gather_part(self, {1, longs({0, 9, 4}).view({3, 1}), 2, 9});
      }).find("[gather] index 9 is outside dimension 1 of size 9"),
      std::string::npos);
}

}  // namespace gpu_errors_test
}  // namespace tessera::detail
