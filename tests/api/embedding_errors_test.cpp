// What lookups refuse: indices outside the table, on every rank, and what has
// no meaning.
#include <gtest/gtest.h>

#include "testing/throws.h"
#include "tests/api/embedding_cases.h"

namespace ts = tessera;
using ts::testing::exact_values;
using ts::testing::for_each_mesh;
using ts::testing::layouts;
using ts::testing::outside;
using ts::testing::parameter;
using ts::testing::placed;
using ts::testing::random_indices;
using ts::testing::replicated;
using ts::testing::throws_saying;
using ts::testing::with_mesh;

namespace embedding_errors_test {

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);
const ts::Placement S1 = ts::Shard(1);

std::string index_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::IndexError& error) {
    return error.what_without_backtrace();
  }
  return "no IndexError";
}

// The error names index and table, and the next lookup works.
void expect_refused(
    const at::Tensor& weight,
    const at::Tensor& bad,
    const at::Tensor& good,
    int64_t index) {
  const auto text = index_error_of([&] { at::embedding(weight, bad); });
  EXPECT_NE(text.find("index " + std::to_string(index)), std::string::npos)
      << text;
  EXPECT_NE(
      text.find(std::to_string(weight.size(0)) + " rows"), std::string::npos)
      << text;
  EXPECT_EQ(text.rfind("[embedding]", 0), 0) << text;
  EXPECT_EQ(
      index_error_of([&] { at::embedding(weight, good); }), "no IndexError");
}

TEST(EmbeddingErrors, IndicesOutsideTheTable) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2 || outside(mesh)) {
      return;
    }
    const auto value = exact_values({9, 4}, at::kFloat, 1);
    const auto good = random_indices(9, {5, 2}, 2);
    for (const auto& table : layouts(mesh, 2)) {
      const auto weight = placed(value, mesh, table);
      for (const auto& batch : layouts(mesh, 2)) {
        for (const auto strategy :
             {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
          const ts::EmbeddingScope scope({.strategy = strategy});
          SCOPED_TRACE(
              ts::to_string(table) + " by " + ts::to_string(batch) +
              ", strategy " + std::to_string(static_cast<int>(strategy)));
          for (const int64_t index : {9, -1}) {
            // The first rank's, then the last one's.
            for (const int64_t row : {0, 4}) {
              auto bad = good.clone();
              bad[row][0] = index;
              expect_refused(
                  weight,
                  placed(bad, mesh, batch),
                  placed(good, mesh, batch),
                  index);
            }
          }
        }
      }
    }
  });
}

TEST(EmbeddingErrors, FarOutsideAndOfEitherDtype) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({9, 4}, at::kFloat, 1);
    const auto refused = [&](int64_t index, c10::ScalarType dtype) {
      auto bad = torch::zeros({4}, dtype);
      bad[2] = index;
      for (const auto& table : {S0, S1, R}) {
        for (const auto& batch : {R, S0}) {
          expect_refused(
              placed(value, mesh, {table}),
              placed(bad, mesh, {batch}),
              placed(torch::zeros({4}, dtype), mesh, {batch}),
              index);
        }
      }
    };
    refused(std::numeric_limits<int64_t>::max(), at::kLong);
    refused(std::numeric_limits<int64_t>::min(), at::kLong);
    refused(int64_t{1} << 40, at::kLong);
    refused(std::numeric_limits<int32_t>::max(), at::kInt);
    refused(std::numeric_limits<int32_t>::min(), at::kInt);
  }));
}

// An index counted from the end is no index, though padding_idx of a module may
// be; and a padding row is looked up like any other.
TEST(EmbeddingErrors, NegativeIndicesEvenIfTheyArePadding) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto weight = placed(exact_values({9, 4}, at::kFloat, 1), mesh, {S0});
    EXPECT_NE(
        index_error_of([&] {
          at::embedding(weight, replicated(torch::tensor({-1, 2}), mesh), -1);
        }),
        "no IndexError");
  }));
}

TEST(EmbeddingErrors, AnyIndexOfAnEmptyTable) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const auto& table : {S0, S1, R}) {
      const auto weight = placed(torch::empty({0, 4}), mesh, {table});
      for (const auto& batch : {R, S0}) {
        expect_refused(
            weight,
            placed(torch::zeros({4}, at::kLong), mesh, {batch}),
            placed(torch::zeros({0}, at::kLong), mesh, {batch}),
            0);
      }
    }
  }));
}

TEST(EmbeddingErrors, IndicesThatAreNoIntegers) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const auto& table : {S0, S1, R}) {
      const auto weight =
          placed(exact_values({9, 4}, at::kFloat, 1), mesh, {table});
      for (const auto& batch : {R, S0}) {
        for (const auto dtype : {at::kFloat, at::kBool, at::kShort}) {
          SCOPED_TRACE(table.str() + batch.str());
          const auto indices = placed(torch::zeros({4}, dtype), mesh, {batch});
          throws_saying<c10::TypeError>(
              "[embedding]", [&] { at::embedding(weight, indices); });
        }
      }
    }
  }));
}

TEST(EmbeddingErrors, TablesThatAreNone) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto indices = replicated(torch::zeros({4}, at::kLong), mesh);
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{9}, {9, 4, 2}}) {
      const auto weight = placed(torch::ones(sizes), mesh, {S0});
      throws_saying<c10::Error>(
          "[embedding] expected a table of two dimensions",
          [&] { at::embedding(weight, indices); });
    }
  }));
}

TEST(EmbeddingErrors, PlainTensorsBesideDistributedOnes) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({9, 4}, at::kFloat, 1);
    const auto indices = random_indices(9, {4}, 2);
    EXPECT_THROW(at::embedding(placed(value, mesh, {S0}), indices), c10::Error);
    EXPECT_THROW(at::embedding(value, replicated(indices, mesh)), c10::Error);
    const ts::ImplicitReplication replicate;
    EXPECT_TRUE(ts::DTensor(at::embedding(placed(value, mesh, {S0}), indices))
                    .full_tensor()
                    .equal(at::embedding(value, indices)));
  }));
}

TEST(EmbeddingErrors, WhatCannotBeDifferentiatedAgain) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto twice =
        [&](const ts::Placement& batch, bool by_frequency, bool sparse) {
          const auto weight =
              parameter(exact_values({9, 4}, at::kFloat, 1), mesh, {S0});
          const auto rows = at::embedding(
              weight,
              placed(random_indices(9, {8}, 2), mesh, {batch}),
              -1,
              by_frequency,
              sparse);
          const auto grad = parameter(torch::ones({8, 4}), mesh, {R});
          const auto first = torch::autograd::grad(
              {rows}, {weight}, {grad}, std::nullopt, /*create_graph=*/true);
          first[0].sum().backward();
        };
    throws_saying<c10::NotImplementedError>(
        "[embedding]", [&] { twice(R, true, false); });
    throws_saying<c10::NotImplementedError>(
        "[embedding]", [&] { twice(R, false, true); });
    const ts::EmbeddingScope scope({.strategy = ts::LookupStrategy::Exchange});
    throws_saying<c10::NotImplementedError>(
        "hold an EmbeddingScope with LookupStrategy::Gather",
        [&] { twice(S0, false, false); });
  }));
}

TEST(EmbeddingErrors, GatherHasNoSparseGradient) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto x = placed(torch::ones({8, 4}), mesh, {S0});
    throws_saying<c10::NotImplementedError>("[gather] sparse gradients", [&] {
      x.gather(
          0,
          replicated(torch::zeros({2, 4}, at::kLong), mesh),
          /*sparse_grad=*/true);
    });
  }));
}

}  // namespace embedding_errors_test
