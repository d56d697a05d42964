// Structs of arguments: their members are found in order, whatever they are.
#include "dispatch/members.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <optional>

#include "dispatch/own_op.h"

namespace tessera::detail {
namespace members_test {

enum class Mode : int64_t { kSum, kMax };

struct One {
  at::Tensor only;
};

struct Inner {
  std::optional<at::Tensor> weights;
  std::optional<int64_t> rows = std::nullopt;
  std::array<bool, 3> wanted = {};
};

struct Outer {
  at::Tensor weight;
  Inner inner;
  Mode mode = Mode::kSum;
  bool sparse = false;
  double eps = 1e-5;

  int64_t methods_do_not_count() const { return 0; }
};

struct Thirteen {
  int64_t a, b, c, d, e, f, g, h, i, j, k, l, m;
};

static_assert(member_count<One>() == 1);
static_assert(member_count<Inner>() == 3);
static_assert(member_count<Outer>() == 5);
static_assert(member_count<Thirteen>() == 13);
static_assert(HasMembers<Inner> && HasMembers<const Outer>);
// One argument each, for the dispatcher.
static_assert(!HasMembers<at::Tensor> && !HasMembers<std::optional<double>>);
static_assert(!HasMembers<std::array<bool, 3>> && !HasMembers<Written>);

TEST(Members, AreThoseOfNestedStructsInOrder) {
  Outer outer;
  auto all = leaves(outer);
  static_assert(std::tuple_size_v<decltype(all)> == 7);
  std::get<0>(all) = at::Tensor();
  std::get<2>(all) = 5;
  std::get<3>(all)[2] = true;
  std::get<4>(all) = Mode::kMax;
  std::get<6>(all) = 0.5;
  EXPECT_EQ(outer.inner.rows, 5);
  EXPECT_TRUE(outer.inner.wanted[2]);
  EXPECT_EQ(outer.mode, Mode::kMax);
  EXPECT_FALSE(outer.sparse);
  EXPECT_EQ(outer.eps, 0.5);
}

TEST(Members, OfAConstStructAreConst) {
  const Thirteen numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const auto all = members(numbers);
  static_assert(std::is_same_v<
                std::tuple_element_t<12, std::remove_const_t<decltype(all)>>,
                const int64_t&>);
  EXPECT_EQ(std::get<0>(all), 0);
  EXPECT_EQ(std::get<12>(all), 12);
}

}  // namespace members_test
}  // namespace tessera::detail
