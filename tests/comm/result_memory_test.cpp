// Memory of results is used again, and what is kept is bounded.
#include "comm/result_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace tessera::detail {
namespace result_memory_test {

constexpr int64_t kMegabyte = int64_t{1} << 20;

at::Tensor bytes(int64_t count) {
  return empty_result({count}, at::TensorOptions(at::kByte));
}

TEST(ResultMemory, AFreedBlockIsUsedAgain) {
  auto first = bytes(5 * kMegabyte);
  const void* data = first.data_ptr();
  auto view = first.narrow(0, 1, 2);
  first.reset();
  // The view still holds it.
  EXPECT_NE(bytes(5 * kMegabyte).data_ptr(), data);
  view.reset();
  EXPECT_EQ(bytes(5 * kMegabyte).data_ptr(), data);
}

TEST(ResultMemory, BlocksMuchTooLargeAreLeft) {
  bytes(9 * kMegabyte).reset();
  const size_t idle = idle_result_bytes();
  EXPECT_GE(idle, static_cast<size_t>(9 * kMegabyte));
  const auto small = bytes(2 * kMegabyte + 17);
  EXPECT_GE(idle_result_bytes() + 3 * kMegabyte, idle);
}

TEST(ResultMemory, WhatIsKeptIsBounded) {
  {
    std::vector<at::Tensor> many;
    for (int i = 0; i < 40; ++i) many.push_back(bytes(10 * kMegabyte + i));
  }
  EXPECT_LE(idle_result_bytes(), kIdleResultBytes);
  EXPECT_GT(idle_result_bytes(), kIdleResultBytes / 2);
  bytes(static_cast<int64_t>(kIdleResultBytes) + 1).reset();
  EXPECT_LE(idle_result_bytes(), kIdleResultBytes);
}

TEST(ResultMemory, ResultsAreOrdinaryTensors) {
  auto result = empty_result({1024, 1024}, at::TensorOptions(at::kFloat));
  EXPECT_EQ(result.sizes(), at::IntArrayRef({1024, 1024}));
  EXPECT_TRUE(result.is_contiguous());
  result.fill_(3);
  EXPECT_EQ(result.sum().item<float>(), 3.0F * 1024 * 1024);
  result.resize_({2048, 1024});
  EXPECT_EQ(result[1023][5].item<float>(), 3);
  EXPECT_EQ(result.mul(2)[0][0].item<float>(), 6);
}

}  // namespace result_memory_test
}  // namespace tessera::detail
