// Views alias their base, or refuse to be written: no write is ever lost.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/dispatch/full_value.h"

namespace tessera {
namespace views_test {

using tessera::testing::error_of;
using tessera::testing::expect_value;
using tessera::testing::on_four_ranks;
using tessera::testing::placements_of;
using ::testing::HasSubstr;

struct NamedView {
  const char* name;
  std::function<at::Tensor(const at::Tensor&)> make;
};

// Views of an 8 x 6 tensor.
const std::vector<NamedView>& views() {
  using T = const at::Tensor&;
  static const std::vector<NamedView> list = {
      {"slice rows", [](T x) { return x.slice(0, 1, 5); }},
      {"slice columns", [](T x) { return x.slice(1, 1, 4); }},
      {"slice all", [](T x) { return x.slice(0, 0, 100); }},
      {"slice step", [](T x) { return x.slice(0, 0, 8, 2); }},
      {"select row", [](T x) { return x.select(0, 3); }},
      {"select column", [](T x) { return x.select(1, 3); }},
      {"narrow", [](T x) { return x.narrow(1, 2, 2); }},
      {"t", [](T x) { return x.t(); }},
      {"transpose", [](T x) { return x.transpose(0, 1); }},
      {"permute", [](T x) { return x.permute({1, 0}); }},
      {"unsqueeze", [](T x) { return x.unsqueeze(1); }},
      {"squeeze", [](T x) { return x.unsqueeze(1).squeeze(1); }},
      {"view", [](T x) { return x.view({48}); }},
      {"view split", [](T x) { return x.view({4, 2, 6}); }},
      {"view same", [](T x) { return x.view({8, 6}); }},
      {"slice of view", [](T x) { return x.view({48}).slice(0, 0, 3); }},
      {"view of slice", [](T x) { return x.slice(0, 2, 4).view({12}); }},
      {"split", [](T x) { return x.split(3, 0)[1]; }},
      {"chunk", [](T x) { return x.chunk(2, 1)[1]; }},
      {"unbind", [](T x) { return x.unbind(0)[2]; }},
      {"diagonal", [](T x) { return x.diagonal(); }},
      {"detach", [](T x) { return x.detach(); }},
      {"reshape", [](T x) { return x.reshape({2, 24}); }},
      {"unfold", [](T x) { return x.unfold(1, 2, 2); }},
  };
  return list;
}

const std::vector<Placement>& layouts() {
  static const std::vector<Placement> list = {Replicate(), Shard(0), Shard(1)};
  return list;
}

TEST(Views, WriteThroughAViewReachesTheBaseOrRaises) {
  on_four_ranks([](const DeviceMesh& mesh) {
    int aliased = 0;
    for (const auto& view : views()) {
      for (const auto& layout : layouts()) {
        SCOPED_TRACE(std::string(view.name) + " of " + layout.str());
        auto plain = at::arange(48, at::kDouble).view({8, 6});
        auto base = distribute_tensor(plain, mesh, layout);
        plain = plain.clone();
        const auto part = view.make(base);
        const auto message = error_of([&] { part.mul_(10); });
        if (message.empty()) {
          ++aliased;
          view.make(plain).mul_(10);
        } else {
          EXPECT_THAT(message, HasSubstr("would not reach its base"));
        }
        expect_value(base, plain);
        EXPECT_EQ(placements_of(base), to_string({layout}));
      }
    }
    // All views of a replicated tensor alias, and most of sharded ones.
    EXPECT_GE(aliased, 45);
  });
}

TEST(Views, WriteToTheBaseIsSeenInTheViewOrReadingRaises) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const auto& view : views()) {
      for (const auto& layout : layouts()) {
        SCOPED_TRACE(std::string(view.name) + " of " + layout.str());
        auto plain = at::arange(48, at::kDouble).view({8, 6});
        auto base = distribute_tensor(plain, mesh, layout);
        plain = plain.clone();
        const auto part = view.make(base);
        base.add_(100);
        const auto expected = view.make(plain.add_(100));
        at::Tensor doubled;
        const auto message = error_of([&] { doubled = part * 2; });
        if (message.empty()) {
          expect_value(doubled, expected * 2);
        } else {
          EXPECT_THAT(message, HasSubstr("base has been written"));
        }
      }
    }
  });
}

// What was written before the view was made is in it.
TEST(Views, OfABaseThatWasWrittenBefore) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto check = [&] {
      for (const auto& view : views()) {
        for (const auto& layout : layouts()) {
          SCOPED_TRACE(std::string(view.name) + " of " + layout.str());
          const auto plain = at::arange(48, at::kDouble).view({8, 6});
          const auto base = distribute_tensor(plain, mesh, layout);
          base.add_(1).mul_(2);
          const auto part = view.make(base);
          expect_value(part + part, view.make((plain + 1) * 2) * 2);
        }
      }
    };
    check();
    {
      const c10::NoGradGuard no_grad;
      check();
    }
    const c10::InferenceMode inference;
    check();
  });
}

// On ones(8, 3), cut along dimension 0.
TEST(Views, WritesThatOthersLose) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const std::vector<std::function<void(const at::Tensor&)>> writes = {
        [](const at::Tensor& y) { y.slice(0, 0, 2).mul_(10); },
        [](const at::Tensor& y) { y.select(0, 1).fill_(7); },
        [](const at::Tensor& y) { y.view({24}).slice(0, 0, 3).zero_(); },
    };
    for (const auto& write : writes) {
      const auto y = ones({8, 3}, mesh, Shard(0));
      const auto plain = at::ones({8, 3});
      write(y);
      write(plain);
      expect_value(y, plain);
    }
  });
}

TEST(Views, OfACopiedViewReachTheBaseToo) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto y = ones({8, 3}, mesh, Shard(0));
    const auto plain = at::ones({8, 3});
    for (const auto& x : std::vector<at::Tensor>{y, plain}) {
      const auto rows = x.slice(0, 0, 2);
      rows.t().mul_(2);
      rows.detach().mul_(2);
      at::add_out(const_cast<at::Tensor&>(rows), rows, rows);
      rows.t().slice(0, 1, 3).add_(1);
    }
    expect_value(y, plain);
    // A copy that the program made itself is one, and arithmetic makes one.
    const auto rows = y.slice(0, 0, 2);
    rows.clone().mul_(2);
    (rows + 1).mul_(2);
    expect_value(y, plain);
  });
}

TEST(Views, ShareTheVersionCounter) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto y = ones({8, 3}, mesh, Shard(0));
    const auto column = y.select(1, 0);
    const auto before = y._version();
    column.add_(1);
    EXPECT_GT(y._version(), before);
  });
}

// A view written in place, then the backward pass through base and view.
TEST(Views, WrittenInPlaceThenBackward) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto run = [](const at::Tensor& leaf) {
      auto y = leaf * 1;
      auto part = y.slice(1, 0, 2);
      part.mul_(part.detach() + 3);
      (y * y).sum().backward();
      return leaf.grad();
    };
    const auto plain = at::arange(24, at::kDouble).view({8, 3});
    const auto leaf =
        distribute_tensor(plain.clone().requires_grad_(), mesh, Shard(0));
    const auto expected = run(plain.clone().requires_grad_());
    expect_value(run(leaf), expected);
  });
}

}  // namespace views_test
}  // namespace tessera
