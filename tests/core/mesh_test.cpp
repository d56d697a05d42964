#include "tessera/mesh.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "scoped_process_context.h"
#include "thrown_message.h"

namespace tessera {
namespace mesh_test {

using detail::ScopedProcessContext;
using detail::thrown_message;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const std::vector<std::string> kDpTp{"dp", "tp"};
const std::vector<std::string> kAbc{"a", "b", "c"};

TEST(DeviceMesh, Init) {
  const ScopedProcessContext world(6);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 3}, kDpTp);
  EXPECT_EQ(mesh.device_type(), "cpu");
  EXPECT_EQ(mesh.ndim(), 2);
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.size(0), 2);
  EXPECT_EQ(mesh.size(-1), 3);
  EXPECT_THAT(mesh.shape(), ElementsAre(2, 3));
  EXPECT_THAT(mesh.dim_names(), ElementsAre("dp", "tp"));
  EXPECT_EQ(mesh.dim("tp"), 1);
  EXPECT_THAT(mesh.all_ranks(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(mesh.local_positions(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_TRUE(mesh.simulated());
  EXPECT_THROW(mesh.size(2), c10::IndexError);
  EXPECT_THROW(mesh.size(-3), c10::IndexError);
}

TEST(DeviceMesh, Text) {
  const ScopedProcessContext world(32);
  EXPECT_EQ(
      init_device_mesh("cpu", {2, 2}, kDpTp).str(),
      "DeviceMesh(cpu, 2x2, dp x tp, ranks [0, 1, 2, 3])");
  EXPECT_EQ(
      init_device_mesh("cuda", {3}).str(),
      "DeviceMesh(cuda, 3, ranks [0, 1, 2])");
  EXPECT_EQ(
      init_device_mesh("cpu", {2, 2}, kDpTp)["tp"].str(),
      "DeviceMesh(cpu, 2, tp, slice of 2x2, ranks [0, 1, 2, 3])");
  EXPECT_EQ(
      init_device_mesh("cpu", {32}).str(),
      "DeviceMesh(cpu, 32, ranks [0, 1, 2, ..., 31])");
}

TEST(DeviceMesh, CoordinatesAndGroups) {
  const ScopedProcessContext world(6);
  const DeviceMesh mesh("cpu", {5, 4, 3, 2, 1, 0}, {2, 3});
  for (int64_t position = 0; position < 6; ++position) {
    EXPECT_EQ(mesh.coordinate(position, 0), position / 3);
    EXPECT_EQ(mesh.coordinate(position, 1), position % 3);
    EXPECT_EQ(mesh.position_of(5 - position), position);
  }
  EXPECT_THAT(mesh.group(4, 0), ElementsAre(1, 4));
  EXPECT_THAT(mesh.group(4, 1), ElementsAre(3, 4, 5));
  EXPECT_THAT(mesh.group(0, -1), ElementsAre(0, 1, 2));
  EXPECT_THAT(mesh.ranks(0), ElementsAre(5, 4, 3, 2, 1, 0));
  EXPECT_THROW(mesh.coordinate(6, 0), c10::IndexError);
  EXPECT_THROW(mesh.coordinate(-1, 0), c10::IndexError);
  EXPECT_THROW(mesh.coordinate(0, 2), c10::IndexError);
  EXPECT_THROW(mesh.group(0, 2), c10::IndexError);
}

TEST(DeviceMesh, Slices) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 2}, kDpTp);
  const DeviceMesh tp = mesh["tp"];
  EXPECT_EQ(tp.ndim(), 1);
  EXPECT_EQ(tp.size(), 2);
  EXPECT_THAT(tp.shape(), ElementsAre(2));
  EXPECT_THAT(tp.dim_names(), ElementsAre("tp"));
  // All ranks take part, each in its own row.
  EXPECT_THAT(tp.all_ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(tp.local_positions(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(tp.ranks(0), ElementsAre(0, 1));
  EXPECT_THAT(tp.ranks(3), ElementsAre(2, 3));
  EXPECT_THAT(tp.group(3, 0), ElementsAre(2, 3));
  EXPECT_EQ(tp.coordinate(2, 0), 0);
  EXPECT_EQ(tp.coordinate(3, 0), 1);

  const DeviceMesh dp = mesh["dp"];
  EXPECT_THAT(dp.ranks(3), ElementsAre(1, 3));
  EXPECT_THAT(dp.group(3, 0), ElementsAre(1, 3));
  EXPECT_EQ(dp.coordinate(2, 0), 1);

  EXPECT_FALSE(tp == dp);
  EXPECT_FALSE(tp == mesh);
  EXPECT_FALSE(tp == DeviceMesh("cpu", {0, 1}, {2}, {"tp"}));
}

TEST(DeviceMesh, SlicesOfSlices) {
  const ScopedProcessContext world(12);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 3, 2}, kAbc);
  const DeviceMesh ac = mesh.slice({"a", "c"});
  EXPECT_THAT(ac.shape(), ElementsAre(2, 2));
  EXPECT_THAT(ac.dim_names(), ElementsAre("a", "c"));
  // Rank 9 is at (1, 1, 1); those that share its b are 2, 3, 8, 9.
  EXPECT_THAT(ac.ranks(9), ElementsAre(2, 3, 8, 9));
  EXPECT_THAT(ac.group(9, 0), ElementsAre(3, 9));
  EXPECT_THAT(ac.group(9, 1), ElementsAre(8, 9));
  EXPECT_EQ(ac["c"], mesh["c"]);
  EXPECT_EQ(mesh.slice(kAbc), mesh);
  EXPECT_EQ(mesh["b"]["b"], mesh["b"]);
  EXPECT_THAT(
      thrown_message<c10::ValueError>([&] { ac["b"]; }),
      AllOf(HasSubstr("\"b\""), HasSubstr("its dimensions are a, c")));
}

TEST(DeviceMesh, SliceErrors) {
  const ScopedProcessContext world(4);
  const DeviceMesh named = init_device_mesh("cpu", {2, 2}, kDpTp);
  const DeviceMesh plain = init_device_mesh("cpu", {2, 2});
  EXPECT_THAT(
      thrown_message<c10::ValueError>([&] { named["pp"]; }),
      AllOf(HasSubstr("\"pp\""), HasSubstr("dp, tp")));
  EXPECT_THAT(
      thrown_message<c10::ValueError>([&] { plain["tp"]; }),
      HasSubstr("have no names"));
  EXPECT_THAT(
      thrown_message<c10::ValueError>([&] { named.slice({}); }),
      AllOf(StartsWith("[DeviceMesh::slice] "), HasSubstr("got none")));
  const std::vector<std::string> twice{"tp", "tp"};
  EXPECT_THAT(
      thrown_message<c10::ValueError>([&] { named.slice(twice); }),
      HasSubstr("named twice"));
  const std::vector<std::string> backwards{"tp", "dp"};
  EXPECT_THAT(
      thrown_message<c10::ValueError>([&] { named.slice(backwards); }),
      HasSubstr("tp, dp are not in the order of the mesh, which is dp, tp"));
  EXPECT_THROW(named.dim("pp"), c10::ValueError);
}

TEST(DeviceMesh, EqualByValue) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 2}, kDpTp);
  EXPECT_EQ(mesh, DeviceMesh("cpu", {0, 1, 2, 3}, {2, 2}, kDpTp));
  EXPECT_EQ(mesh.hash(), DeviceMesh("cpu", {0, 1, 2, 3}, {2, 2}, kDpTp).hash());
  const std::vector<std::string> other_names{"dp", "pp"};
  const std::vector<DeviceMesh> others{
      init_device_mesh("cpu", {2, 2}),
      init_device_mesh("cuda", {2, 2}, kDpTp),
      init_device_mesh("cpu", {4}),
      init_device_mesh("cpu", {4, 1}, kDpTp),
      init_device_mesh("cpu", {2, 2}, other_names),
      DeviceMesh("cpu", {0, 1, 3, 2}, {2, 2}, kDpTp)};
  for (const DeviceMesh& other : others) {
    EXPECT_FALSE(mesh == other) << other;
    EXPECT_NE(mesh.hash(), other.hash()) << other;
  }
  const ScopedProcessContext another_world(4);
  EXPECT_FALSE(mesh == init_device_mesh("cpu", {2, 2}, kDpTp));
}

TEST(DeviceMesh, SubsetOfTheWorld) {
  const ScopedProcessContext world(4);
  const DeviceMesh mesh("cpu", {3, 1});
  EXPECT_EQ(mesh.position_of(3), 0);
  EXPECT_EQ(mesh.position_of(1), 1);
  EXPECT_EQ(mesh.position_of(0), -1);
  EXPECT_EQ(mesh.position_of(-1), -1);
  EXPECT_EQ(mesh.position_of(4), -1);
  EXPECT_TRUE(mesh.contains(1));
  EXPECT_FALSE(mesh.contains(2));
  EXPECT_THAT(mesh.local_positions(), ElementsAre(0, 1));
  EXPECT_THROW(mesh.ranks(0), c10::ValueError);
}

TEST(DeviceMesh, OverProcesses) {
  const ScopedProcessContext world(6, /*rank=*/4);
  const DeviceMesh mesh = init_device_mesh("cpu", {2, 3}, kDpTp);
  EXPECT_FALSE(mesh.simulated());
  EXPECT_THAT(mesh.local_positions(), ElementsAre(4));
  EXPECT_THAT(mesh.get_coordinate().value(), ElementsAre(1, 1));
  EXPECT_EQ(mesh.get_local_rank(0), 1);
  EXPECT_EQ(mesh.get_local_rank(-1), 1);
  EXPECT_THAT(mesh["dp"].get_coordinate().value(), ElementsAre(1));
  EXPECT_THAT(mesh["dp"].ranks(4), ElementsAre(1, 4));
  EXPECT_THROW(mesh.get_local_rank(2), c10::IndexError);

  const DeviceMesh without_us("cpu", {0, 5});
  EXPECT_THAT(without_us.local_positions(), IsEmpty());
  EXPECT_EQ(without_us.get_coordinate(), std::nullopt);
  EXPECT_THAT(
      thrown_message<c10::Error>([&] { without_us.get_local_rank(); }),
      HasSubstr("rank 4 of this process is outside"));
}

TEST(DeviceMesh, CoordinateOfASimulatedWorld) {
  {
    const ScopedProcessContext world(4);
    const DeviceMesh mesh = init_device_mesh("cpu", {4});
    EXPECT_THAT(
        thrown_message<c10::Error>([&] { mesh.get_coordinate(); }),
        AllOf(HasSubstr("all 4 ranks"), HasSubstr("coordinate(position")));
    EXPECT_THROW(mesh.get_local_rank(), c10::Error);
  }
  const ScopedProcessContext alone(1);
  const DeviceMesh mesh = init_device_mesh("cpu", {1, 1});
  EXPECT_THAT(mesh.get_coordinate().value(), ElementsAre(0, 0));
  EXPECT_EQ(mesh.get_local_rank(1), 0);
}

TEST(DeviceMesh, Refuses) {
  EXPECT_THAT(
      thrown_message<c10::Error>([] { init_device_mesh("cpu", {4}); }),
      AllOf(
          StartsWith("[init_device_mesh] "), HasSubstr("World::simulate(4)")));
  const ScopedProcessContext world(4);
  const std::vector<std::string> same_names{"x", "x"};
  const std::vector<std::string> one_name{"x"};
  const std::vector<std::string> empty_name{"x", ""};
  const struct {
    std::function<void()> call;
    std::string text;
  } table[] = {
      {[] { DeviceMesh("cpu", {0, 1, 2}, {2, 2}); },
       "[DeviceMesh] a mesh of shape [2, 2] takes 4 ranks but 3 were given"},
      {[] { DeviceMesh("cpu", {0, 4}); },
       "rank 4 is outside the world, whose ranks are 0 to 3"},
      {[] { DeviceMesh("cpu", {0, -1}); }, "rank -1 is outside the world"},
      {[] { DeviceMesh("cpu", {1, 1}); }, "rank 1 is named twice"},
      {[] { DeviceMesh("cpu", {}); }, "positive extents"},
      {[] { init_device_mesh("cpu", {}); }, "at least one dimension"},
      {[] { init_device_mesh("cpu", {2, 0}); }, "positive extents"},
      {[] { init_device_mesh("cpu", {INT64_MAX, 2}); }, "too large"},
      {[] { init_device_mesh("cpu", {2, 3}); },
       "takes 6 ranks, but the world has 4"},
      {[] { init_device_mesh("cpuu", {4}); }, "\"cpuu\""},
      {[] { init_device_mesh("cuda:0", {4}); }, "\"cuda:0\""},
      {[&] { init_device_mesh("cpu", {2, 2}, same_names); },
       "are called \"x\""},
      {[&] { init_device_mesh("cpu", {2, 2}, one_name); },
       "the mesh has 2 dimensions but 1 dimension names were given"},
      {[&] { init_device_mesh("cpu", {2, 2}, empty_name); },
       "must not be empty"},
  };
  for (const auto& row : table) {
    EXPECT_THAT(thrown_message<c10::ValueError>(row.call), HasSubstr(row.text));
  }
}

TEST(DeviceMesh, OutlivesItsWorld) {
  std::optional<DeviceMesh> mesh;
  {
    const ScopedProcessContext world(4);
    mesh = init_device_mesh("cpu", {4}, {"x"});
  }
  EXPECT_EQ(mesh->size(), 4);
  EXPECT_EQ((*mesh)["x"], *mesh);
}

}  // namespace mesh_test
}  // namespace tessera
