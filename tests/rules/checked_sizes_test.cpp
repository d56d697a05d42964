#include "tessera/checked_sizes.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "rules/windows.h"

namespace checked_sizes_test {

using tessera::CheckedSizes;
using tessera::Sizes;

TEST(CheckedSizes, ReadsWhatIsThere) {
  CheckedSizes sizes{2, 3, 5};
  sizes[1] = 4;
  sizes.back() += 1;
  EXPECT_EQ(sizes, (Sizes{2, 4, 6}));
  EXPECT_EQ(sizes.from_end(3), 2);
  EXPECT_EQ(sizes.slice(1, 2), (Sizes{4, 6}));
  EXPECT_EQ(sizes.slice(3, 0), Sizes{});
  EXPECT_EQ(sizes.without_first(1), (Sizes{4, 6}));
  EXPECT_EQ(sizes.without_last(3), Sizes{});
  EXPECT_EQ(CheckedSizes(2, 7), (Sizes{7, 7}));
  sizes.pop_back();
  EXPECT_EQ(sizes, (Sizes{2, 4}));
}

TEST(CheckedSizes, ThrowsWhereNothingIs) {
  const CheckedSizes two{2, 3};
  CheckedSizes none;
  EXPECT_THROW(two[2], std::out_of_range);
  EXPECT_THROW(two[-1], std::out_of_range);
  EXPECT_THROW(none[0] = 1, std::out_of_range);
  EXPECT_THROW(none.back(), std::out_of_range);
  EXPECT_THROW(none.pop_back(), std::out_of_range);
  EXPECT_THROW(two.from_end(3), std::out_of_range);
  EXPECT_THROW(two.from_end(0), std::out_of_range);
  EXPECT_THROW(two.slice(1, 2), std::out_of_range);
  EXPECT_THROW(two.slice(-1, 1), std::out_of_range);
  EXPECT_THROW(two.without_first(3), std::out_of_range);
  EXPECT_THROW(two.without_last(3), std::out_of_range);
  EXPECT_THROW(CheckedSizes(-1, 1), std::out_of_range);
}

TEST(CheckedSizes, AListOfOneIsForAllDimensions) {
  EXPECT_EQ(tessera::detail::along({7}, 2), 7);
  EXPECT_EQ(tessera::detail::along({7, 8, 9}, 2), 9);
  EXPECT_THROW(tessera::detail::along({7, 8}, 2), std::out_of_range);
  EXPECT_THROW(tessera::detail::along({}, 0), std::out_of_range);
}

}  // namespace checked_sizes_test
