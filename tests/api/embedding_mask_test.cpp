// What a row-wise lookup gives, a MaskPartial, is a tensor like any other: each
// way in which such a result is known to go wrong elsewhere is a test here.
#include <gtest/gtest.h>

#include "testing/throws.h"
#include "tests/api/embedding_cases.h"

namespace ts = tessera;
using ts::testing::exact_values;
using ts::testing::for_each_mesh;
using ts::testing::outside;
using ts::testing::parameter;
using ts::testing::placed;
using ts::testing::random_indices;
using ts::testing::replicated;
using ts::testing::with_mesh;

namespace embedding_mask_test {

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);

// A table of 9 x 4 by rows over four ranks, and 4 looked-up rows: a square.
class MaskPartialResult : public ::testing::Test {
 protected:
  // Calls body(rows, expected) with the lookup and its value on one device.
  void with_rows(
      const std::function<void(const at::Tensor&, const at::Tensor&)>& body) {
    ASSERT_TRUE(with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
      const auto rows =
          at::embedding(placed(weight, mesh, {S0}), replicated(indices, mesh));
      ASSERT_EQ(
          ts::DTensor(rows).placements()[0],
          ts::MaskPartial(weight.sizes(), 0));
      body(rows, at::embedding(weight, indices));
    }));
  }

  static void expect_value(const at::Tensor& actual, const at::Tensor& value) {
    EXPECT_EQ(
        ts::testing::difference(ts::DTensor(actual).full_tensor(), value), "");
  }

  const at::Tensor weight = exact_values({9, 4}, at::kFloat, 1);
  const at::Tensor indices = torch::tensor({8, 0, 5, 3});
};

TEST_F(MaskPartialResult, AddedToItself) {
  with_rows([](const at::Tensor& rows, const at::Tensor& value) {
    expect_value(rows + rows, value + value);
    expect_value(rows * 3, value * 3);
    expect_value(rows - 0.5 * rows, value * 0.5);
  });
}

TEST_F(MaskPartialResult, AddedToAConstant) {
  with_rows([](const at::Tensor& rows, const at::Tensor& value) {
    expect_value(rows + 1, value + 1);
    expect_value(torch::relu(rows), torch::relu(value));
    expect_value(rows * rows, value * value);
  });
}

TEST_F(MaskPartialResult, TransposedSquare) {
  with_rows([](const at::Tensor& rows, const at::Tensor& value) {
    expect_value(rows.t(), value.t());
    expect_value(rows.t() + rows, value.t() + value);
  });
}

TEST_F(MaskPartialResult, Summed) {
  with_rows([](const at::Tensor& rows, const at::Tensor& value) {
    expect_value(rows.sum(), value.sum());
    expect_value(rows.sum(0), value.sum(0));
    expect_value(rows.sum(1, /*keepdim=*/true), value.sum(1, true));
    expect_value(rows.mean(), value.mean());
    expect_value(rows.amax(1), value.amax(1));
  });
}

TEST_F(MaskPartialResult, Viewed) {
  with_rows([](const at::Tensor& rows, const at::Tensor& value) {
    expect_value(rows.view({16}), value.view({16}));
    expect_value(rows.view({2, 2, 4}), value.view({2, 2, 4}));
    expect_value(rows.unsqueeze(1), value.unsqueeze(1));
    expect_value(rows.flatten(), value.flatten());
  });
}

TEST_F(MaskPartialResult, Sliced) {
  with_rows([](const at::Tensor& rows, const at::Tensor& value) {
    expect_value(rows.slice(0, 1, 3), value.slice(0, 1, 3));
    expect_value(rows.slice(1, 0, 4, 2), value.slice(1, 0, 4, 2));
    expect_value(rows.select(0, 2), value.select(0, 2));
    expect_value(rows.narrow(1, 1, 2), value.narrow(1, 1, 2));
    const auto parts = rows.split(3);
    const auto wanted = value.split(3);
    ASSERT_EQ(parts.size(), wanted.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      expect_value(parts[i], wanted[i]);
    }
  });
}

TEST_F(MaskPartialResult, Concatenated) {
  with_rows([](const at::Tensor& rows, const at::Tensor& value) {
    expect_value(at::cat({rows, rows}), at::cat({value, value}));
    expect_value(at::cat({rows, rows * 2}, 1), at::cat({value, value * 2}, 1));
    expect_value(at::stack({rows, rows}, 1), at::stack({value, value}, 1));
  });
}

TEST_F(MaskPartialResult, ClonedAndCopied) {
  with_rows([](const at::Tensor& rows, const at::Tensor& value) {
    const auto copy = rows.clone();
    rows.mul_(2);
    expect_value(copy, value);
    expect_value(rows, value * 2);
    const auto other = torch::zeros_like(copy);
    other.copy_(copy);
    expect_value(other, value);
    expect_value(copy.detach(), value);
    expect_value(copy.to(at::kDouble), value.to(at::kDouble));
  });
}

TEST_F(MaskPartialResult, MultipliedByAMatrix) {
  with_rows([](const at::Tensor& rows, const at::Tensor& value) {
    const auto matrix = exact_values({4, 3}, at::kFloat, 9);
    expect_value(
        rows.mm(replicated(matrix, ts::DTensor(rows).mesh())),
        value.mm(matrix));
  });
}

TEST_F(MaskPartialResult, ReducedAnyNumberOfTimes) {
  with_rows([](const at::Tensor& rows, const at::Tensor& value) {
    for (int i = 0; i < 3; ++i) {
      expect_value(rows, value);
      for (const int64_t dim : {0, 1}) {
        expect_value(ts::DTensor(rows).redistribute({ts::Shard(dim)}), value);
      }
      expect_value(ts::DTensor(rows).redistribute({R}), value);
    }
  });
}

// Every index is one rank's: to_local has its row there, and zeros elsewhere.
TEST_F(MaskPartialResult, ShardsHoldZerosForForeignRows) {
  with_rows([this](const at::Tensor& rows, const at::Tensor& value) {
    const ts::DTensor result(rows);
    const auto shards = result.shards();
    for (size_t i = 0; i < shards.size(); ++i) {
      const int64_t rank = result.mesh().local_positions()[i];
      // 9 rows over 4 ranks: 3, 3, 3, 0.
      const auto own = indices.floor_divide(3).eq(rank).unsqueeze(1);
      EXPECT_TRUE(shards[i].equal(value * own)) << shards[i];
    }
    if (!result.mesh().simulated()) {
      EXPECT_TRUE(result.to_local().equal(shards[0]));
    }
  });
}

TEST(MaskPartial, TextAndEquality) {
  const auto mask = ts::MaskPartial({9, 4}, 0);
  EXPECT_EQ(mask.str(), "MaskP");
  EXPECT_EQ(mask.repr(), "MaskPartial(offset_shape=[9, 4], offset_dim=0)");
  EXPECT_EQ(mask, ts::MaskPartial({9, 4}, 0));
  EXPECT_NE(mask, ts::MaskPartial({9, 5}, 0));
  EXPECT_NE(mask, ts::MaskPartial({9, 4}, 1));
  EXPECT_NE(mask, ts::Partial());
  EXPECT_TRUE(mask.is_partial());
  EXPECT_EQ(mask.reduce_op(), ts::ReduceOp::Sum);
  EXPECT_EQ(mask.offset_dim(), 0);
  EXPECT_EQ(mask.offset_shape(), (std::vector<int64_t>{9, 4}));
}

TEST(MaskPartial, GatherAlongACutDimension) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 1 || mesh.size() == 1) {
      return;
    }
    const auto value = exact_values({7, 5}, at::kFloat, 1);
    for (const int64_t dim : {0, 1}) {
      for (const auto& from : {S0, ts::Shard(1)}) {
        const auto index = random_indices(
            value.size(dim),
            dim == 0 ? at::IntArrayRef{4, 3} : at::IntArrayRef{3, 6},
            2);
        const auto grad = exact_values(index.sizes(), at::kFloat, 3);
        const auto plain = value.clone().requires_grad_();
        const auto expected = plain.gather(dim, index);
        expected.backward(grad);

        const auto x = parameter(value, mesh, {from});
        ts::CommDebugMode comm;
        const auto actual = x.gather(dim, replicated(index, mesh));
        if (from.dim() == dim) {
          // Each rank answers for its own part.
          EXPECT_EQ(
              ts::DTensor(actual).placements()[0],
              ts::MaskPartial(value.sizes(), dim));
          EXPECT_EQ(comm.get_total_counts(), 0) << comm;
        }
        const auto full = ts::DTensor(actual.detach()).full_tensor();
        if (!outside(mesh)) {
          EXPECT_TRUE(full.equal(expected.detach()));
        }
        comm.reset();
        actual.backward(replicated(grad, mesh));
        if (from.dim() == dim) {
          EXPECT_EQ(comm.get_total_counts(), 0) << comm;
        }
        EXPECT_EQ(
            ts::testing::shard_difference(x.grad(), plain.grad(), mesh, {from}),
            "");
      }
    }
  });
}

TEST(MaskPartial, GatherRefusesIndicesOutside) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto x = placed(exact_values({7, 5}, at::kFloat, 1), mesh, {S0});
    for (const int64_t bad : {int64_t{7}, int64_t{-1}}) {
      for (const auto& batch : {R, S0}) {
        auto index = torch::zeros({8, 5}, at::kLong);
        index[7][3] = bad;
        ts::testing::throws_saying<c10::IndexError>(std::to_string(bad), [&] {
          x.gather(0, placed(index, mesh, {batch}));
        });
      }
    }
  }));
}

}  // namespace embedding_mask_test
