// What lookups in sharded tables send: nothing where indices are replicated,
// never the table, and just the bytes of docs/embeddings.md.
#include <gtest/gtest.h>

#include <set>

#include "tests/api/embedding_cases.h"

namespace ts = tessera;
using Counts = std::map<std::string, int64_t>;
using ts::testing::exact_values;
using ts::testing::for_each_mesh;
using ts::testing::layouts;
using ts::testing::outside;
using ts::testing::parameter;
using ts::testing::placed;
using ts::testing::random_indices;
using ts::testing::replicated;
using ts::testing::with_mesh;

namespace embedding_comm_test {

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);
const ts::Placement S1 = ts::Shard(1);

TEST(EmbeddingComm, ReplicatedIndicesSendNothing) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    const auto value = exact_values({9, 6}, at::kFloat, 1);
    const auto indices = replicated(random_indices(9, {5, 4}, 2), mesh);
    const auto grad = replicated(exact_values({5, 4, 6}, at::kFloat, 3), mesh);
    for (const auto& table : layouts(mesh, 2)) {
      for (const bool sparse : {false, true}) {
        SCOPED_TRACE(ts::to_string(table));
        const auto weight = parameter(value, mesh, table);
        ts::CommDebugMode comm;
        const auto rows = at::embedding(weight, indices, 3, false, sparse);
        EXPECT_EQ(comm.get_total_counts(), 0) << comm;
        rows.backward(grad);
        EXPECT_EQ(comm.get_total_counts(), 0) << comm;
        EXPECT_TRUE(weight.grad().defined());
      }
    }
  });
}

TEST(EmbeddingComm, FullTensorOfRowWiseIsOneAllReduce) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 1 || mesh.size() == 1 || outside(mesh)) {
      return;
    }
    const auto weight =
        parameter(exact_values({9, 6}, at::kFloat, 1), mesh, {S0});
    const auto indices = replicated(random_indices(9, {5, 4}, 2), mesh);
    const auto grad = exact_values({5, 4, 6}, at::kFloat, 3);
    ts::CommDebugMode comm;
    const auto full = ts::DTensor(at::embedding(weight, indices)).full_tensor();
    EXPECT_EQ(comm.get_comm_counts(), (Counts{{"all_reduce", 1}})) << comm;
    full.backward(grad);
    EXPECT_EQ(comm.get_total_counts(), 1) << comm;
  });
}

TEST(EmbeddingComm, ToShardOfRowWiseIsOneReduceScatter) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto weight = placed(exact_values({9, 6}, at::kFloat, 1), mesh, {S0});
    const auto indices = replicated(random_indices(9, {8}, 2), mesh);
    ts::CommDebugMode comm;
    ts::DTensor(at::embedding(weight, indices)).redistribute({S0});
    EXPECT_EQ(comm.get_comm_counts(), (Counts{{"reduce_scatter", 1}}));
  }));
}

// A replicated table needs only to know that no rank has a bad index.
TEST(EmbeddingComm, BatchesOverAReplicatedTableAgree) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto weight =
        parameter(exact_values({9, 6}, at::kFloat, 1), mesh, {R});
    const auto indices = placed(random_indices(9, {8}, 2), mesh, {S0});
    ts::CommDebugMode comm;
    const auto rows = at::embedding(weight, indices);
    EXPECT_EQ(comm.get_comm_counts(), (Counts{{"agree", 1}})) << comm;
    rows.backward(replicated(torch::ones({8, 6}), mesh));
    // The gradient is known to all: their indices are all they need.
    EXPECT_EQ(comm.get_comm_counts(), (Counts{{"agree", 1}, {"all_gather", 1}}))
        << comm;
  }));
}

// Indices of one rank of a 1-d mesh, and what it must send.
class Traffic {
 public:
  Traffic(const at::Tensor& indices, int64_t rows, int64_t ranks)
      : ranks_(ranks),
        rows_((rows + ranks - 1) / ranks),
        numel_(indices.numel()),
        distinct_(ranks) {
    const auto chunks = indices.chunk(ranks, 0);
    for (size_t r = 0; r < chunks.size(); ++r) {
      counts_.push_back(chunks[r].numel());
      const auto flat = chunks[r].flatten().to(at::kLong).contiguous();
      const auto* data = flat.const_data_ptr<int64_t>();
      distinct_[r].insert(data, data + flat.numel());
    }
    counts_.resize(ranks, 0);
  }

  int64_t mine(int64_t rank) const { return counts_[rank]; }
  int64_t all() const { return numel_; }

  // How many distinct rows of `owner` a rank wants.
  int64_t wants(int64_t rank, int64_t owner) const {
    int64_t count = 0;
    for (const int64_t index : distinct_[rank]) {
      count += index / rows_ == owner ? 1 : 0;
    }
    return count;
  }
  int64_t wants_of_others(int64_t rank) const {
    return static_cast<int64_t>(distinct_[rank].size()) - wants(rank, rank);
  }
  int64_t asked_by_others(int64_t owner) const {
    int64_t count = 0;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      count += rank == owner ? 0 : wants(rank, owner);
    }
    return count;
  }

 private:
  int64_t ranks_;
  int64_t rows_;
  int64_t numel_;
  std::vector<int64_t> counts_;
  std::vector<std::set<int64_t>> distinct_;
};

constexpr int64_t kRows = 4001;  // uneven over 2, 3 and 4 ranks
constexpr int64_t kColumns = 16;
constexpr int64_t kRowBytes = kColumns * 4;

struct Sent {
  Counts forward;
  Counts forward_bytes;
  Counts backward;
  Counts backward_bytes;
};

Sent traffic_of(
    const ts::DeviceMesh& mesh,
    const at::Tensor& indices,
    ts::LookupStrategy strategy) {
  const ts::EmbeddingScope scope({.strategy = strategy});
  const auto weight =
      parameter(exact_values({kRows, kColumns}, at::kFloat, 1), mesh, {S0});
  const auto batch = placed(indices, mesh, {S0});
  const auto grad = placed(
      exact_values({indices.size(0), kColumns}, at::kFloat, 2), mesh, {S0});
  Sent sent;
  ts::CommDebugMode comm;
  const auto rows = at::embedding(weight, batch);
  sent.forward = comm.get_comm_counts();
  sent.forward_bytes = comm.get_comm_bytes();
  comm.reset();
  rows.backward(grad);
  sent.backward = comm.get_comm_counts();
  sent.backward_bytes = comm.get_comm_bytes();
  return sent;
}

template <class Body>
void for_each_traffic(const Body& body) {
  for_each_mesh([&](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 1 || mesh.size() == 1 || outside(mesh)) {
      return;
    }
    const int64_t rank = mesh.local_positions()[0];
    for (const auto dtype : {at::kInt, at::kLong}) {
      // 50 indices: uneven over 3 and 4 ranks. Of a table of many rows, and
      // with many duplicates.
      for (const int64_t bound : {kRows, int64_t{11}}) {
        body(mesh, rank, random_indices(bound, {50}, 3, dtype));
      }
    }
  });
}

TEST(EmbeddingComm, GatherSendsItsFormula) {
  for_each_traffic(
      [](const ts::DeviceMesh& mesh, int64_t rank, const at::Tensor& indices) {
        const Traffic traffic(indices, kRows, mesh.size());
        const auto sent = traffic_of(mesh, indices, ts::LookupStrategy::Gather);
        const int64_t others = mesh.size() - 1;
        EXPECT_EQ(
            sent.forward, (Counts{{"all_gather", 1}, {"reduce_scatter", 1}}));
        EXPECT_EQ(
            sent.forward_bytes,
            (Counts{
                {"all_gather",
                 others * traffic.mine(rank) *
                     static_cast<int64_t>(indices.element_size())},
                {"reduce_scatter",
                 (traffic.all() - traffic.mine(rank)) * kRowBytes}}));
        EXPECT_EQ(sent.backward, (Counts{{"all_gather", 1}}));
        EXPECT_EQ(
            sent.backward_bytes,
            (Counts{{"all_gather", others * traffic.mine(rank) * kRowBytes}}));
      });
}

TEST(EmbeddingComm, ExchangeSendsItsFormula) {
  for_each_traffic([](const ts::DeviceMesh& mesh,
                      int64_t rank,
                      const at::Tensor& indices) {
    const Traffic traffic(indices, kRows, mesh.size());
    const auto sent = traffic_of(mesh, indices, ts::LookupStrategy::Exchange);
    EXPECT_EQ(sent.forward, (Counts{{"all_to_all_rows", 3}}));
    // Counts of 8 bytes; indices of 4, since the table has fewer rows than an
    // int counts; rows to those that ask.
    EXPECT_EQ(
        sent.forward_bytes,
        (Counts{
            {"all_to_all_rows",
             8 * (mesh.size() - 1) + 4 * traffic.wants_of_others(rank) +
                 kRowBytes * traffic.asked_by_others(rank)}}));
    EXPECT_EQ(sent.backward, (Counts{{"all_to_all_rows", 1}}));
    EXPECT_EQ(
        sent.backward_bytes,
        (Counts{
            {"all_to_all_rows", kRowBytes * traffic.wants_of_others(rank)}}));
  });
}

// Whatever the layouts and the strategy, what is sent is of the size of indices
// and rows looked up. The table is a thousand times that.
TEST(EmbeddingComm, TheTableNeverMoves) {
  for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() > 2 || mesh.size() == 1 || outside(mesh)) {
      return;
    }
    const auto value = exact_values({20000, 8}, at::kFloat, 1);
    const auto indices = random_indices(20000, {8, 2}, 3);
    const int64_t looked_up = 16 * (8 * 4 + 8);
    for (const auto& table : layouts(mesh, 2)) {
      for (const auto& batch : layouts(mesh, 2)) {
        for (const auto strategy :
             {ts::LookupStrategy::Cheapest,
              ts::LookupStrategy::Gather,
              ts::LookupStrategy::Exchange}) {
          SCOPED_TRACE(
              ts::to_string(table) + " by " + ts::to_string(batch) +
              " strategy " + std::to_string(static_cast<int>(strategy)));
          const ts::EmbeddingScope scope({.strategy = strategy});
          const auto weight = parameter(value, mesh, table);
          ts::CommDebugMode comm;
          const auto rows = at::embedding(weight, placed(indices, mesh, batch));
          EXPECT_LE(comm.get_total_bytes(), 4 * looked_up) << comm;
          comm.reset();
          // A gradient as the rows lie; of a pending sum it is replicated.
          auto lies = ts::Placements(ts::DTensor(rows).placements());
          for (auto& placement : lies) {
            placement = placement.is_partial() ? R : placement;
          }
          rows.backward(
              placed(exact_values({8, 2, 8}, at::kFloat, 4), mesh, lies));
          // Where the table is replicated and the indices are not, its
          // gradient is reduced: that is the size of a table, and must be.
          bool reduced = false;
          for (int64_t m = 0; m < mesh.ndim(); ++m) {
            reduced |= table[m].is_replicate() && batch[m].is_shard();
          }
          if (!reduced) {
            EXPECT_LE(comm.get_total_bytes(), 4 * looked_up) << comm;
          }
        }
      }
    }
  });
}

// Few indices among many ranks' worth of rows: the cost function picks the
// strategy that sends less, and either is there by name.
TEST(EmbeddingComm, WaysByName) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto indices = random_indices(kRows, {4096}, 3);
    const auto collectives = [&](ts::LookupStrategy strategy) {
      return traffic_of(mesh, indices, strategy).forward;
    };
    const Counts gather{{"all_gather", 1}, {"reduce_scatter", 1}};
    const Counts exchange{{"all_to_all_rows", 3}};
    EXPECT_EQ(collectives(ts::LookupStrategy::Gather), gather);
    EXPECT_EQ(collectives(ts::LookupStrategy::Exchange), exchange);
    // 4 times the rows would be sent by gathering.
    EXPECT_EQ(collectives(ts::LookupStrategy::Cheapest), exchange);
    const ts::EmbeddingScope outer({.strategy = ts::LookupStrategy::Gather});
    {
      const ts::EmbeddingScope inner(
          {.strategy = ts::LookupStrategy::Exchange});
      EXPECT_EQ(
          ts::EmbeddingScope::current().strategy, ts::LookupStrategy::Exchange);
    }
    EXPECT_EQ(
        ts::EmbeddingScope::current().strategy, ts::LookupStrategy::Gather);
  }));
}

TEST(EmbeddingComm, CollectivesNameTheirOp) {
  ASSERT_TRUE(with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    for (const auto strategy :
         {ts::LookupStrategy::Gather, ts::LookupStrategy::Exchange}) {
      const ts::EmbeddingScope scope({.strategy = strategy});
      const auto weight =
          parameter(exact_values({9, 4}, at::kFloat, 1), mesh, {S0});
      ts::CommDebugMode comm;
      const auto rows =
          at::embedding(weight, placed(random_indices(9, {8}, 2), mesh, {S0}));
      for (const auto& record : comm.get_records()) {
        EXPECT_EQ(record.op, "aten::embedding");
        EXPECT_FALSE(record.backward);
      }
      comm.reset();
      rows.backward(placed(exact_values({8, 4}, at::kFloat, 3), mesh, {S0}));
      ASSERT_FALSE(comm.get_records().empty());
      for (const auto& record : comm.get_records()) {
        EXPECT_TRUE(record.backward);
      }
    }
  }));
}

}  // namespace embedding_comm_test
