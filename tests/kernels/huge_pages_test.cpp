#include "kernels/huge_pages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace tessera::detail {
namespace huge_pages_test {

TEST(HugePages, ACopyIsEqualAndItsOwn) {
  const auto table = at::arange(3 << 20, at::kFloat).view({1 << 20, 3});
  for (const auto& source :
       {table, table.t(), table.slice(0, 5, 17), table.slice(0, 0, 0)}) {
    const auto copy = copy_on_huge_pages(source);
    EXPECT_TRUE(copy.equal(source));
    EXPECT_TRUE(copy.is_contiguous());
    EXPECT_FALSE(copy.is_alias_of(source));
    EXPECT_EQ(copy.scalar_type(), source.scalar_type());
  }
}

TEST(HugePages, AskingLeavesTheContents) {
  const auto table = at::arange(3 << 20, at::kFloat);
  const auto before = table.clone();
  prefer_huge_pages(table.slice(0, 1, 100));
  EXPECT_TRUE(table.equal(before));
}

TEST(HugePages, NotForWhatIsSmallOrElsewhere) {
  EXPECT_FALSE(prefer_huge_pages(at::ones({1000})));
  EXPECT_FALSE(prefer_huge_pages(at::ones({0})));
  EXPECT_FALSE(prefer_huge_pages(
      at::empty({4 << 20}, at::TensorOptions(at::kFloat).device(at::kMeta))));
}

}  // namespace huge_pages_test
}  // namespace tessera::detail
