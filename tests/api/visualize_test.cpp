#include <tessera/debug.h>
#include <tessera/distribute.h>
#include <tessera/world.h>
#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace visualize_test {

using ::testing::HasSubstr;
using ::testing::Not;

struct Picture {
  const char* name;
  std::vector<int64_t> mesh;
  Sizes sizes;
  const char* placements;
  const char* expected;  // below the line that names the layout
};

SpecPtr spec_of(const Picture& picture) {
  return Spec::make(
      init_device_mesh("cpu", picture.mesh),
      parse_placements(picture.placements),
      picture.sizes,
      at::kFloat);
}

const Picture kPictures[] = {
    {"Rows",
     {4},
     {8, 3},
     "[S(0)]",
     "      0:3\n"
     "    +-----+\n"
     "0:2 |  0  |\n"
     "    +-----+\n"
     "2:4 |  1  |\n"
     "    +-----+\n"
     "4:6 |  2  |\n"
     "    +-----+\n"
     "6:8 |  3  |\n"
     "    +-----+\n"},
    {"UnevenAndEmpty",
     {4},
     {2, 5},
     "[S(1)]",
     "      0:2   2:4   4:5\n"
     "    +-----+-----+-----+\n"
     "0:2 |  0  |  1  |  2  |\n"
     "    +-----+-----+-----+\n"
     "nothing on rank 3\n"},
    {"Blocks",
     {2, 2},
     {4, 6},
     "[S(0), S(1)]",
     "      0:3   3:6\n"
     "    +-----+-----+\n"
     "0:2 |  0  |  1  |\n"
     "    +-----+-----+\n"
     "2:4 |  2  |  3  |\n"
     "    +-----+-----+\n"},
    {"BlocksTurned",
     {2, 2},
     {4, 6},
     "[S(1), S(0)]",
     "      0:3   3:6\n"
     "    +-----+-----+\n"
     "0:2 |  0  |  2  |\n"
     "    +-----+-----+\n"
     "2:4 |  1  |  3  |\n"
     "    +-----+-----+\n"},
    {"ReplicatedRows",
     {2, 2},
     {4, 6},
     "[R, S(0)]",
     "      0:6\n"
     "    +-----+\n"
     "0:2 | 0,2 |\n"
     "    +-----+\n"
     "2:4 | 1,3 |\n"
     "    +-----+\n"},
    {"Replicated",
     {4},
     {7},
     "[R]",
     "   0:7\n"
     " +-----+\n"
     " | 0-3 |\n"
     " +-----+\n"},
    {"CutTwice",
     {2, 2},
     {7},
     "[S(0), S(0)]",
     "   0:2   2:4   4:6   6:7\n"
     " +-----+-----+-----+-----+\n"
     " |  0  |  1  |  2  |  3  |\n"
     " +-----+-----+-----+-----+\n"},
    {"Pending",
     {2, 2},
     {4},
     "[P(sum), S(0)]",
     "     0:2        2:4\n"
     " +----------+----------+\n"
     " | sum(0,2) | sum(1,3) |\n"
     " +----------+----------+\n"},
    {"PendingReplicas",
     {2, 2},
     {4},
     "[R, P(max)]",
     "          0:4\n"
     " +-------------------+\n"
     " | max(0,1),max(2,3) |\n"
     " +-------------------+\n"},
    {"Scalar",
     {3},
     {},
     "[P(avg)]",
     "ranks     holds\n"
     "avg(0-2)  the scalar\n"},
    {"ThreeDims",
     {2, 2},
     {4, 3, 5},
     "[S(0), S(2)]",
     "ranks  dim 0  dim 1  dim 2\n"
     "0      0:2    0:3    0:3\n"
     "1      0:2    0:3    3:5\n"
     "2      2:4    0:3    0:3\n"
     "3      2:4    0:3    3:5\n"},
    {"NoElements", {3}, {0, 4}, "[S(1)]", "nothing on ranks 0-2\n"},
};

TEST(VisualizeSharding, Pictures) {
  for (const auto& picture : kPictures) {
    SCOPED_TRACE(picture.name);
    const auto world = World::simulate(4);
    const auto spec = spec_of(picture);
    EXPECT_EQ(visualize_sharding(*spec), spec->str() + "\n" + picture.expected);
  }
}

TEST(VisualizeSharding, TensorsArePicturedByTheirLayout) {
  const auto world = World::simulate(2);
  const auto mesh = init_device_mesh("cpu", {2});
  const auto tensor = distribute_tensor(torch::ones({4, 2}), mesh, {Shard(0)});
  EXPECT_EQ(visualize_sharding(tensor), visualize_sharding(*tensor.spec()));
  EXPECT_EQ(
      visualize_sharding_svg(tensor), visualize_sharding_svg(*tensor.spec()));
}

TEST(VisualizeSharding, GridsTooWideForAPageAreTables) {
  const auto world = World::simulate(64);
  const auto spec = Spec::make(
      init_device_mesh("cpu", {64}), {Shard(1)}, {2, 128}, at::kFloat);
  const auto text = visualize_sharding(*spec);
  EXPECT_THAT(text, HasSubstr("\n63     0:2    126:128\n"));
  EXPECT_THAT(text, Not(HasSubstr("|")));
}

TEST(VisualizeSharding, PlainTensorsAreRefused) {
  EXPECT_THROW(visualize_sharding(torch::ones({2})), c10::TypeError);
  EXPECT_THROW(visualize_sharding(at::Tensor()), c10::TypeError);
  EXPECT_THROW(visualize_sharding_svg(torch::ones({2})), c10::TypeError);
}

size_t occurrences(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(VisualizeShardingSvg, DrawsEachBlockToScale) {
  const auto world = World::simulate(4);
  const auto spec =
      Spec::make(init_device_mesh("cpu", {4}), {Shard(0)}, {8, 8}, at::kFloat);
  const auto svg = visualize_sharding_svg(*spec);
  EXPECT_THAT(svg, HasSubstr("<svg xmlns="));
  EXPECT_THAT(svg, HasSubstr("</svg>\n"));
  EXPECT_EQ(occurrences(svg, "<g>"), 4u);
  // A square of 480: each of the four rows of blocks is 120 high.
  EXPECT_EQ(occurrences(svg, "width=\"480.0\" height=\"120.0\""), 4u);
  EXPECT_THAT(svg, HasSubstr("<title>3: [6:8, 0:8]</title>"));
}

TEST(VisualizeShardingSvg, LeadingDimensionsArePanels) {
  const auto world = World::simulate(4);
  const auto spec = Spec::make(
      init_device_mesh("cpu", {2, 2}),
      {Shard(0), Shard(3)},
      {4, 3, 5, 6},
      at::kFloat);
  const auto svg = visualize_sharding_svg(*spec);
  EXPECT_THAT(svg, HasSubstr(">[0:2, 0:3, ...]<"));
  EXPECT_THAT(svg, HasSubstr(">[2:4, 0:3, ...]<"));
  EXPECT_EQ(occurrences(svg, "<g>"), 4u);
}

TEST(VisualizeShardingSvg, NamesRanksThatHoldNothing) {
  const auto world = World::simulate(4);
  const auto spec =
      Spec::make(init_device_mesh("cpu", {4}), {Shard(0)}, {2}, at::kFloat);
  const auto svg = visualize_sharding_svg(*spec);
  EXPECT_EQ(occurrences(svg, "<g>"), 2u);
  EXPECT_THAT(svg, HasSubstr("nothing on ranks 2,3"));
}

}  // namespace visualize_test
}  // namespace tessera
