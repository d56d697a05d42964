// The mask of a rank's own lookup: kept, applied, given up.
#include "tessera/mask_buffer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "testing/throws.h"

namespace ts = tessera;
using ts::testing::throws_saying;

namespace mask_buffer_test {

at::Tensor mask() { return torch::tensor({true, false, true}); }

TEST(MaskBuffer, ZeroesMaskedEntries) {
  ts::MaskBuffer buffer;
  buffer.materialize_mask(mask());
  auto entries = torch::tensor({1.0, 2.0, 3.0});
  buffer.apply_mask(entries);
  EXPECT_TRUE(entries.equal(torch::tensor({0.0, 2.0, 0.0})));
}

TEST(MaskBuffer, ZeroesMaskedRowsOfATensorWithOneDimensionMore) {
  ts::MaskBuffer buffer;
  buffer.materialize_mask(mask());
  auto rows = torch::ones({3, 2}, torch::kInt);
  buffer.apply_mask(rows);
  EXPECT_TRUE(rows.equal(torch::tensor({{0, 0}, {1, 1}, {0, 0}}, at::kInt)));
  // A mask of two dimensions on a square of rows, where the dimensions could be
  // mixed up.
  ts::MaskBuffer square;
  square.materialize_mask(torch::tensor({{false, true}, {false, false}}));
  auto cube = torch::ones({2, 2, 2});
  square.apply_mask(cube);
  EXPECT_TRUE(
      cube.equal(torch::tensor({{{1., 1.}, {0., 0.}}, {{1., 1.}, {1., 1.}}})));
}

TEST(MaskBuffer, AppliesAnyNumberOfTimes) {
  ts::MaskBuffer buffer;
  buffer.materialize_mask(mask());
  for (int i = 0; i < 3; ++i) {
    auto entries = torch::ones({3});
    buffer.apply_mask(entries);
    EXPECT_EQ(entries.sum().item<double>(), 1);
  }
  EXPECT_TRUE(buffer.is_materialized());
}

TEST(MaskBuffer, IsFullOrEmpty) {
  ts::MaskBuffer buffer;
  auto entries = torch::ones({3});
  const auto empty = "MaskBuffer has not been materialized";
  throws_saying<c10::Error>(empty, [&] { buffer.release_mask(); });
  throws_saying<c10::Error>(empty, [&] { buffer.apply_mask(entries); });
  EXPECT_TRUE(entries.equal(torch::ones({3})));
  buffer.materialize_mask(mask());
  throws_saying<c10::Error>("MaskBuffer has already been materialized", [&] {
    buffer.materialize_mask(mask());
  });
  buffer.release_mask();
  throws_saying<c10::Error>(empty, [&] { buffer.apply_mask(entries); });
  throws_saying<c10::Error>(empty, [&] { buffer.release_mask(); });
  buffer.materialize_mask(mask());
  buffer.apply_mask(entries);
  EXPECT_EQ(entries.sum().item<double>(), 1);
}

TEST(MaskBuffer, CopiesAreOfTheirOwn) {
  ts::MaskBuffer first;
  first.materialize_mask(mask());
  const ts::MaskBuffer second = first;
  first.release_mask();
  first.materialize_mask(torch::tensor({false, true, true}));
  auto a = torch::ones({3});
  auto b = torch::ones({3});
  first.apply_mask(a);
  second.apply_mask(b);
  EXPECT_TRUE(a.equal(torch::tensor({1.0, 0.0, 0.0}).to(at::kFloat)));
  EXPECT_TRUE(b.equal(torch::tensor({0.0, 1.0, 0.0}).to(at::kFloat)));
}

TEST(MaskBuffer, RefusesWhatDoesNotFit) {
  ts::MaskBuffer buffer;
  throws_saying<c10::TypeError>(
      "[MaskBuffer::materialize_mask] expected a bool tensor, but got Float",
      [&] { buffer.materialize_mask(torch::ones({3})); });
  throws_saying<c10::TypeError>(
      "but got none", [&] { buffer.materialize_mask(at::Tensor()); });
  buffer.materialize_mask(mask());
  for (const auto& sizes :
       std::vector<std::vector<int64_t>>{{}, {1}, {4}, {2, 3}, {3, 1, 1}}) {
    auto tensor = torch::ones(sizes);
    throws_saying<c10::ValueError>(
        "[MaskBuffer::apply_mask] expected a tensor of the mask's shape [3]",
        [&] { buffer.apply_mask(tensor); });
    EXPECT_TRUE(tensor.equal(torch::ones(sizes)));
  }
}

}  // namespace mask_buffer_test
