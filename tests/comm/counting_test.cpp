// What observers are told of each collective, in both worlds.
#include <map>

#include "comm/comm_event.h"
#include "tests/comm/shards.h"

namespace tessera::testing {
namespace counting_test {

using detail::collectives;
using detail::CommEvent;

struct Told {
  std::string collective;
  std::string cause;
  int64_t group_size;
  int64_t bytes;
};

class Listener : public detail::CommObserver {
 public:
  Listener() { detail::add_comm_observer(this); }
  ~Listener() override { detail::remove_comm_observer(this); }
  void on_collective(const CommEvent& event) override {
    told.push_back(
        {std::string(event.collective),
         std::string(event.cause),
         event.group_size,
         event.bytes[0]});
  }
  std::vector<Told> told;
};

// Issues each collective once on shards of [10, 4] floats.
void issue_all(const DeviceMesh& mesh, int64_t dim) {
  auto& c = collectives(mesh);
  const detail::MeshDim at{mesh, dim};
  const int64_t n = mesh.size(dim);
  const auto in = make_shards(
      mesh, [](int64_t p) { return values(p, {10, 4}, at::kFloat); });
  const auto cut =
      make_parts(mesh, [&](int64_t) { return chunk_sizes(10, n); });
  const auto tens = make_parts(mesh, [&](int64_t) { return Parts(n, 10); });
  const auto fours = make_parts(mesh, [&](int64_t) { return Parts(n, 4); });
  const auto mine = make_parts(mesh, [&](int64_t p) {
    return Parts(n, chunk_sizes(10, n)[mesh.coordinate(p, dim)]);
  });
  c.all_reduce(at, in, ReduceOp::Sum);
  c.all_gather(at, in, 0, tens);
  c.reduce_scatter(at, in, 0, cut, ReduceOp::Sum);
  c.all_to_all(at, in, {0, cut}, {1, fours});
  c.all_to_all_rows(at, in, cut, mine);
  c.broadcast(at, in);
  c.scatter(at, in, 0, cut);
}

TEST(Counting, BytesByTheFormulas) {
  with_mesh({4}, [](const DeviceMesh& mesh) {
    Listener listener;
    issue_all(mesh, 0);
    const int64_t me = mesh.simulated() ? 0 : test_world().rank();
    const int64_t b = 160;  // 10 x 4 floats
    const int64_t kept = (me == 3 ? 1 : 3) * 16;
    const std::vector<std::pair<std::string, int64_t>> expected{
        {"all_reduce", 2 * 3 * 40},
        {"all_gather", 3 * b},
        {"reduce_scatter", b - kept},
        {"all_to_all", b - kept},
        {"all_to_all_rows", b - kept},
        {"broadcast", me == 0 ? 3 * b : 0},
        {"scatter", me == 0 ? b - kept : 0}};
    if (me > 3) return;
    ASSERT_EQ(listener.told.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(listener.told[i].collective, expected[i].first);
      EXPECT_EQ(listener.told[i].bytes, expected[i].second)
          << expected[i].first;
      EXPECT_EQ(listener.told[i].group_size, 4);
      EXPECT_EQ(listener.told[i].cause, "");
    }
  });
}

TEST(Counting, AnAllReduceRoundsItsPiecesUp) {
  with_mesh({3}, [](const DeviceMesh& mesh) {
    Listener listener;
    const auto in =
        make_shards(mesh, [](int64_t p) { return values(p, {4}, at::kFloat); });
    collectives(mesh).all_reduce({mesh, 0}, in, ReduceOp::Sum);
    if (in.empty()) {
      EXPECT_TRUE(listener.told.empty());
      return;
    }
    ASSERT_EQ(listener.told.size(), 1U);
    EXPECT_EQ(listener.told[0].bytes, 2 * 2 * 6);
  });
}

TEST(Counting, GroupsOfOneAreSilent) {
  with_mesh({1}, [](const DeviceMesh& mesh) {
    Listener listener;
    issue_all(mesh, 0);
    collectives(mesh).agree(mesh, "");
    EXPECT_TRUE(listener.told.empty());
  });
}

TEST(Counting, OneEventForAllGroupsOfAMeshDim) {
  with_mesh({2, 2}, [](const DeviceMesh& mesh) {
    Listener listener;
    issue_all(mesh, 1);
    ASSERT_EQ(listener.told.size(), 7U);
    for (const auto& event : listener.told) EXPECT_EQ(event.group_size, 2);
  });
}

TEST(Counting, NamesTheCauseOfTheThread) {
  with_mesh({2}, [](const DeviceMesh& mesh) {
    Listener outer;
    const auto in = make_shards(mesh, [](int64_t) { return at::ones({2}); });
    const auto issue = [&] {
      collectives(mesh).all_reduce({mesh, 0}, in, ReduceOp::Sum);
    };
    {
      const detail::CommCauseGuard mm("aten::mm");
      issue();
      {
        const detail::CommCauseGuard sum("aten::sum");
        Listener inner;
        issue();
        EXPECT_EQ(inner.told.size(), in.empty() ? 0U : 1U);
      }
      issue();
    }
    issue();
    if (in.empty()) return;
    ASSERT_EQ(outer.told.size(), 4U);
    EXPECT_EQ(outer.told[0].cause, "aten::mm");
    EXPECT_EQ(outer.told[1].cause, "aten::sum");
    EXPECT_EQ(outer.told[2].cause, "aten::mm");
    EXPECT_EQ(outer.told[3].cause, "");
  });
}

}  // namespace counting_test
}  // namespace tessera::testing
