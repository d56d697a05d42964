// Gradients that hold only the touched rows, the optimizers that apply them,
// and gradients scaled by how often a row was looked up.
#include <gtest/gtest.h>

#include "tessera/shard_math.h"
#include "testing/throws.h"
#include "tests/api/embedding_cases.h"

namespace ts = tessera;
using ts::testing::exact_values;
using ts::testing::expect_as_on_one_device;
using ts::testing::for_each_mesh;
using ts::testing::layouts;
using ts::testing::LookupCase;
using ts::testing::outside;
using ts::testing::parameter;
using ts::testing::placed;
using ts::testing::random_indices;
using ts::testing::replicated;
using ts::testing::throws_saying;
using ts::testing::with_mesh;

namespace embedding_sparse_test {

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);
const ts::Placement S1 = ts::Shard(1);

constexpr int64_t kRows = 9;
constexpr int64_t kColumns = 6;

LookupCase lookup_of(const ts::Placements& table, const ts::Placements& batch) {
  LookupCase c{
      exact_values({kRows, kColumns}, at::kFloat, 1),
      random_indices(kRows, {5, 4}, 2)};
  c.table = table;
  c.batch = batch;
  return c;
}

TEST(EmbeddingSparse, EveryLayout) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2) {
      return;
    }
    for (const auto& table : layouts(mesh, 2)) {
      for (const auto& batch : layouts(mesh, 2)) {
        for (const auto strategy :
             {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
          auto c = lookup_of(table, batch);
          c.sparse = true;
          c.strategy = strategy;
          c.padding_idx = 7;
          expect_as_on_one_device(c, mesh);
        }
      }
    }
  });
}

TEST(EmbeddingSparse, ShardsStoreTheTouchedRowsOfTheirOwn) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const auto& batch : {R, S0}) {
      const auto weight =
          parameter(exact_values({kRows, kColumns}, at::kFloat, 1), mesh, {S0});
      const auto indices = torch::tensor({0, 8, 0, 2, 8, 8, 1, 0});
      at::embedding(
          weight,
          placed(indices, mesh, {batch}),
          /*padding_idx=*/1,
          false,
          true)
          .sum()
          .backward();
      EXPECT_EQ(ts::DTensor(weight.grad()).placements()[0], S0);
      const auto shards = ts::DTensor(weight.grad()).shards();
      for (size_t i = 0; i < shards.size(); ++i) {
        const int64_t rank = mesh.local_positions()[i];
        ASSERT_TRUE(shards[i].is_sparse());
        // 9 rows over 4 ranks: 3, 3, 3, 0. Touched: 0, 2 and 8; 1 is padding.
        EXPECT_EQ(
            shards[i].sizes(),
            (std::vector<int64_t>{rank == 3 ? 0 : 3, kColumns}));
        const auto rows = shards[i].coalesce().indices().flatten();
        const std::vector<at::Tensor> touched{
            torch::tensor({0, 2}),
            torch::empty({0}, at::kLong),
            torch::tensor({2}),
            torch::empty({0}, at::kLong)};
        EXPECT_TRUE(rows.equal(touched[rank])) << rows;
      }
    }
  }));
}

TEST(EmbeddingSparse, GradientsOfSeveralLookupsAddUp) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 1) {
      return;
    }
    const auto value = exact_values({kRows, kColumns}, at::kFloat, 1);
    const auto one = random_indices(kRows, {5}, 2);
    const auto two = random_indices(kRows, {5}, 3);
    const auto loss = [&](const at::Tensor& weight, const auto& place) {
      return (at::embedding(weight, place(one), -1, false, true) +
              at::embedding(weight, place(two), -1, false, true))
          .sum();
    };
    const auto plain = value.clone().requires_grad_();
    loss(plain, [](const at::Tensor& x) { return x; }).backward();
    for (const auto& table : {S0, S1}) {
      const auto weight = parameter(value, mesh, {table});
      loss(weight, [&](const at::Tensor& x) {
        return at::Tensor(replicated(x, mesh));
      }).backward();
      EXPECT_EQ(
          ts::testing::shard_difference(
              weight.grad(), plain.grad().to_dense(), mesh, {table}),
          "");
    }
  });
}

// One device and the mesh side by side: some steps, each on other indices.
template <class Step>
void train_both(
    const ts::DeviceMesh& mesh,
    const ts::Placements& table,
    const ts::Placement& batch,
    bool sparse,
    const Step& step) {
  SCOPED_TRACE(ts::to_string(table) + " by " + batch.str());
  const auto value = exact_values({kRows, kColumns}, at::kDouble, 1);
  const auto plain = value.clone().requires_grad_();
  const auto weight = parameter(value, mesh, table);
  auto step_plain = step(plain);
  auto step_mesh = step(weight);
  for (uint64_t i = 0; i < 4; ++i) {
    const auto indices = random_indices(kRows, {6, 2}, 10 + i);
    const auto target = exact_values({6, 2, kColumns}, at::kDouble, 20 + i);
    plain.mutable_grad() = at::Tensor();
    torch::mse_loss(at::embedding(plain, indices, 3, false, sparse), target)
        .backward();
    step_plain();
    weight.mutable_grad() = at::Tensor();
    torch::mse_loss(
        at::embedding(
            weight,
            placed(indices, mesh, ts::Placements(mesh.ndim(), batch)),
            3,
            false,
            sparse),
        replicated(target, mesh))
        .backward();
    step_mesh();
    EXPECT_EQ(
        ts::testing::shard_difference(weight, plain.detach(), mesh, table), "")
        << "after step " << i;
  }
}

// The optimizer holds the distributed table itself.
auto sgd(double momentum) {
  return [momentum](const at::Tensor& weight) {
    auto optimizer = std::make_shared<torch::optim::SGD>(
        std::vector<at::Tensor>{weight},
        torch::optim::SGDOptions(0.5).momentum(momentum));
    return [optimizer] { optimizer->step(); };
  };
}

// The optimizer holds the distributed table itself and looks at the entries of
// its gradient.
auto adagrad_of_the_table(const at::Tensor& weight) {
  auto optimizer = std::make_shared<torch::optim::Adagrad>(
      std::vector<at::Tensor>{weight}, torch::optim::AdagradOptions(0.5));
  return [optimizer] { optimizer->step(); };
}

// The optimizer holds the shards, as plain tensors that share their memory.
std::function<void()> adagrad(const at::Tensor& weight) {
  std::vector<at::Tensor> locals;
  if (!ts::is_dtensor(weight)) {
    locals.push_back(weight.detach());
  } else {
    for (const auto& shard : ts::DTensor(weight.detach()).shards()) {
      locals.push_back(shard.detach());
    }
  }
  for (auto& local : locals) {
    local.requires_grad_();
  }
  auto optimizer = std::make_shared<torch::optim::Adagrad>(
      locals, torch::optim::AdagradOptions(0.5));
  return [optimizer, locals, weight] {
    const auto grads = ts::is_dtensor(weight)
                           ? ts::DTensor(weight.grad()).shards()
                           : std::vector<at::Tensor>{weight.grad()};
    for (size_t i = 0; i < locals.size(); ++i) {
      locals[i].mutable_grad() = grads[i];
    }
    optimizer->step();
  };
}

template <class Body>
void for_each_table(const Body& body) {
  for_each_mesh([&](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2 || outside(mesh)) {
      return;
    }
    for (const auto& table : layouts(mesh, 2)) {
      for (const auto& batch : {R, S0}) {
        body(mesh, table, batch);
      }
    }
  });
}

TEST(EmbeddingSparse, StochasticGradientDescent) {
  for_each_table([](const auto& mesh, const auto& table, const auto& batch) {
    train_both(mesh, table, batch, true, sgd(0));
    train_both(mesh, table, batch, false, sgd(0));
  });
}

TEST(EmbeddingSparse, StochasticGradientDescentWithMomentum) {
  for_each_table([](const auto& mesh, const auto& table, const auto& batch) {
    train_both(mesh, table, batch, true, sgd(0.9));
    train_both(mesh, table, batch, false, sgd(0.9));
  });
}

TEST(EmbeddingSparse, AdagradOverTheShards) {
  for_each_table([](const auto& mesh, const auto& table, const auto& batch) {
    train_both(mesh, table, batch, true, adagrad);
    train_both(mesh, table, batch, false, adagrad);
  });
}

TEST(EmbeddingSparse, AdagradOfTheTable) {
  for_each_table([](const auto& mesh, const auto& table, const auto& batch) {
    train_both(mesh, table, batch, true, adagrad_of_the_table);
    train_both(mesh, table, batch, false, adagrad_of_the_table);
  });
}

// The gradient of one device and of the mesh, stored sparse.
template <class Body>
void for_each_sparse_gradient(const Body& body) {
  for_each_table([&](const auto& mesh, const auto& table, const auto& batch) {
    SCOPED_TRACE(ts::to_string(table) + " by " + batch.str());
    const auto value = exact_values({kRows, kColumns}, at::kFloat, 1);
    const auto indices = random_indices(kRows, {6, 2}, 4);
    const auto plain = value.clone().requires_grad_();
    at::embedding(plain, indices, 3, false, true).pow(2).sum().backward();
    const auto weight = parameter(value, mesh, table);
    at::embedding(
        weight,
        placed(indices, mesh, ts::Placements(mesh.ndim(), batch)),
        3,
        false,
        true)
        .pow(2)
        .sum()
        .backward();
    body(plain.grad(), weight.grad(), ts::DTensor(weight));
  });
}

TEST(EmbeddingSparse, GradientsAnswerAsSparseOnes) {
  for_each_sparse_gradient([](const auto& plain,
                              const auto& grad,
                              const auto&) {
    EXPECT_TRUE(grad.is_sparse());
    EXPECT_EQ(grad.layout(), at::kSparse);
    EXPECT_EQ(grad.sparse_dim(), 1);
    EXPECT_EQ(grad.dense_dim(), 1);
    const auto coalesced = grad.coalesce();
    EXPECT_TRUE(coalesced.is_coalesced());
    EXPECT_EQ(
        ts::DTensor(coalesced).placements(), ts::DTensor(grad).placements());
    EXPECT_TRUE(ts::DTensor(coalesced).full_tensor().equal(plain.to_dense()));
  });
}

// A process sees the entries that live in it: in a simulated world all of them.
TEST(EmbeddingSparse, EntriesAreThoseOfOneDevice) {
  for_each_sparse_gradient(
      [](const auto& plain, const auto& grad, const ts::DTensor& weight) {
        const auto coalesced = grad.coalesce();
        const auto rows = ts::DTensor(coalesced._indices()).full_tensor()[0];
        const auto values = ts::DTensor(coalesced._values()).full_tensor();
        EXPECT_EQ(coalesced._nnz(), rows.size(0));
        const auto& mesh = weight.mesh();
        std::vector<at::Tensor> expected;
        for (int64_t row = 0; row < kRows; ++row) {
          bool here = false;
          for (const int64_t position : mesh.local_positions()) {
            const auto range =
                ts::local_range(kRows, 0, mesh, weight.placements(), position);
            here |= range.begin <= row && row < range.begin + range.size;
          }
          const auto touched = plain.coalesce().indices()[0];
          if (here && touched.eq(row).any().template item<bool>()) {
            expected.push_back(torch::tensor({row}));
          }
        }
        const auto expected_rows = expected.empty()
                                       ? torch::empty({0}, at::kLong)
                                       : torch::cat(expected);
        ASSERT_TRUE(rows.equal(expected_rows)) << rows << expected_rows;
        EXPECT_TRUE(values.equal(plain.to_dense().index_select(0, rows)));
      });
}

TEST(EmbeddingSparse, MaskedByTheEntries) {
  for_each_sparse_gradient(
      [](const auto&, const auto& grad, const ts::DTensor& weight) {
        const auto coalesced = grad.coalesce();
        const auto masked = weight.detach().sparse_mask(coalesced);
        const auto rows = ts::DTensor(coalesced._indices()).full_tensor()[0];
        EXPECT_TRUE(
            ts::DTensor(masked._values())
                .full_tensor()
                .equal(weight.full_tensor().detach().index_select(0, rows)));
        // And back: what is masked out and put in again.
        auto zeros = at::zeros_like(weight.detach());
        zeros.add_(masked, 2);
        const auto back = ts::DTensor(zeros).full_tensor();
        const auto all_rows =
            ts::DTensor(coalesced).full_tensor().ne(0).any(1, true);
        // Rows of gradients that are zero are stored all the same.
        EXPECT_TRUE(back.where(all_rows, torch::zeros({}))
                        .equal((weight.full_tensor().detach() * 2)
                                   .where(all_rows, torch::zeros({}))));
      });
}

TEST(EmbeddingSparse, EntriesThatAreCopiesAreNotWritten) {
  for_each_sparse_gradient([](const auto& plain,
                              const auto& grad,
                              const auto&) {
    auto values = grad._values();
    try {
      values.mul_(3);
    } catch (const c10::Error& error) {
      EXPECT_NE(
          std::string(error.what()).find("copied into another layout"),
          std::string::npos);
      return;
    }
    EXPECT_TRUE(ts::DTensor(grad).full_tensor().equal(plain.to_dense() * 3));
  });
}

TEST(EmbeddingFrequency, ScalesGradientsByTheWholeBatch) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2) {
      return;
    }
    for (const auto& table : layouts(mesh, 2)) {
      for (const auto& batch : layouts(mesh, 2)) {
        for (const auto strategy :
             {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
          auto c = lookup_of(table, batch);
          c.scale_grad_by_freq = true;
          c.strategy = strategy;
          c.padding_idx = 2;
          expect_as_on_one_device(c, mesh);
        }
      }
    }
  });
}

TEST(EmbeddingFrequency, RefusedForSparseGradients) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const auto& table : {S0, S1}) {
      for (const auto& batch : {R, S0}) {
        auto c = lookup_of({table}, {batch});
        const auto weight = parameter(c.weight, mesh, c.table);
        throws_saying<c10::NotImplementedError>(
            "scale_grad_by_freq is not supported for sparse gradients", [&] {
              at::embedding(
                  weight, placed(c.indices, mesh, c.batch), -1, true, true)
                  .sum()
                  .backward();
            });
      }
    }
  }));
}

}  // namespace embedding_sparse_test
