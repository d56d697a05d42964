// The collectives of shards on devices, through a c10d backend: what NCCL runs,
// here over Gloo on shards of the CPU, beside our own messages. Run as
// processes.
#include "comm/process/device_group.h"

#include "tessera/process_group.h"
#include "testing/processes.h"
#include "tests/comm/shards.h"

namespace tessera::testing {
namespace device_group_test {

using detail::Call;
using detail::CollectiveKind;
using detail::collectives;
using detail::DeviceGroup;

class DeviceGroups : public FourProcesses {
 protected:
  void SetUp() override {
    FourProcesses::SetUp();
    mesh_.emplace(init_device_mesh("cpu", {4}));
    group_ = std::make_unique<DeviceGroup>(
        std::vector<int64_t>{0, 1, 2, 3},
        me(),
        detail::DeviceBackend{get_group(*mesh_, 0), {}, {}});
  }

  static int64_t me() { return test_world().rank(); }
  Call call(CollectiveKind kind) const {
    return {kind, &*mesh_, 0, test_world().timeout()};
  }
  detail::MeshDim along() const { return {*mesh_, 0}; }
  detail::Collectives& messages() const { return collectives(*mesh_); }

  static void expect_same(const at::Tensor& ours, const at::Tensor& wanted) {
    ASSERT_EQ(ours.sizes(), wanted.sizes());
    ASSERT_EQ(ours.scalar_type(), wanted.scalar_type());
    EXPECT_TRUE(ours.is_contiguous());
    EXPECT_TRUE(at::equal(ours, wanted)) << ours << "\ninstead of\n" << wanted;
  }

  std::optional<DeviceMesh> mesh_;
  std::unique_ptr<DeviceGroup> group_;
};

// Shapes with `size` along the dimension given beside them.
std::vector<std::pair<std::vector<int64_t>, int64_t>> shapes_with(
    int64_t size) {
  return {
      {{size}, 0},
      {{size, 3}, 0},
      {{3, size}, 1},
      {{2, size, 3}, 1},
      {{1, size, 2}, 1},
      {{0, size}, 1}};
}

TEST_F(DeviceGroups, AllReduceOfEveryTypeAndSize) {
  // The last two are cut into blocks, one of them unevenly.
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {}, {0, 3}, {5}, {3, 2}, {64, 1024}, {65, 1023}}) {
    for (const auto type : all_types()) {
      for (const auto op : all_ops()) {
        if (!reducible(type, op)) continue;
        SCOPED_TRACE(c10::str(type, " ", at::IntArrayRef(sizes)));
        const auto mine = values(me(), sizes, type);
        expect_same(
            group_->all_reduce(call(CollectiveKind::AllReduce), mine, op),
            messages().all_reduce(along(), mine, op)[0]);
      }
    }
  }
  // Terms whose sum depends on their order.
  const auto mine = at::randn({70'001}).mul(std::pow(10.0, me()));
  expect_same(
      group_->all_reduce(call(CollectiveKind::AllReduce), mine, ReduceOp::Sum),
      messages().all_reduce(along(), mine, ReduceOp::Sum)[0]);
}

TEST_F(DeviceGroups, MovesOfEveryTypeDimAndCut) {
  for (const auto& parts : cuts(4)) {
    const std::vector<Parts> all{parts};
    for (const auto& [sizes, dim] : shapes_with(sum_of(parts))) {
      for (const auto type : all_types()) {
        SCOPED_TRACE(c10::str(type, " ", at::IntArrayRef(sizes), " ", dim));
        const auto mine = values(me(), sizes, type);
        const auto part = part_of(mine, dim, parts, me());
        expect_same(
            group_->all_gather(
                call(CollectiveKind::AllGather), part, dim, parts),
            messages().all_gather(along(), part, dim, all)[0]);
        expect_same(
            group_->reduce_scatter(
                call(CollectiveKind::ReduceScatter),
                mine,
                dim,
                parts,
                ReduceOp::Sum),
            messages().reduce_scatter(
                along(), mine, dim, all, ReduceOp::Sum)[0]);
        expect_same(
            group_->scatter(call(CollectiveKind::Scatter), mine, dim, parts),
            messages().scatter(along(), mine, dim, all)[0]);
        expect_same(
            group_->broadcast(call(CollectiveKind::Broadcast), mine),
            messages().broadcast(along(), mine)[0]);
      }
    }
  }
}

TEST_F(DeviceGroups, AllToAllOfEveryCut) {
  for (const auto& from : cuts(4)) {
    for (const auto& to : cuts(4)) {
      const int64_t a = from[me()];
      const int64_t b = sum_of(to);
      struct Case {
        std::vector<int64_t> sizes;
        int64_t concat_dim;
        int64_t split_dim;
      };
      const std::vector<Case> cases{
          {{a, b}, 0, 1}, {{b, a}, 1, 0}, {{2, a, b}, 1, 2}, {{b, 2, a}, 2, 0}};
      for (const auto& [sizes, concat_dim, split_dim] : cases) {
        for (const auto type : {at::kBool, at::kHalf, at::kComplexFloat}) {
          SCOPED_TRACE(c10::str(type, " ", at::IntArrayRef(sizes)));
          const auto mine = values(me(), sizes, type);
          expect_same(
              group_->all_to_all(
                  call(CollectiveKind::AllToAll),
                  mine,
                  split_dim,
                  to,
                  concat_dim,
                  from),
              messages().all_to_all(
                  along(),
                  mine,
                  {split_dim, std::vector<Parts>{to}},
                  {concat_dim, std::vector<Parts>{from}})[0]);
        }
      }
    }
  }
}

TEST_F(DeviceGroups, RowsToWhoWantsThem) {
  // Rank r sends (r + 2 c) % 3 rows to rank c.
  Parts sent;
  Parts received;
  for (int64_t c = 0; c < 4; ++c) {
    sent.push_back((me() + 2 * c) % 3);
    received.push_back((c + 2 * me()) % 3);
  }
  for (const auto type : all_types()) {
    for (const std::vector<int64_t>& row :
         std::vector<std::vector<int64_t>>{{}, {5}, {0}, {2, 3}}) {
      std::vector<int64_t> sizes{sum_of(sent)};
      sizes.insert(sizes.end(), row.begin(), row.end());
      const auto mine = values(me(), sizes, type);
      expect_same(
          group_->all_to_all_rows(
              call(CollectiveKind::AllToAllRows), mine, sent, received),
          messages().all_to_all_rows(
              along(),
              mine,
              std::vector<Parts>{sent},
              std::vector<Parts>{received})[0]);
    }
  }
}

}  // namespace device_group_test
}  // namespace tessera::testing
