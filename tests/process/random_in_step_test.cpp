// Ranks whose generators differ drew different replicas without an error. The
// next message between ranks that hold the same numbers tells. Run as
// processes.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/processes.h"

namespace tessera::testing {
namespace random_in_step_test {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr const char* kFound = "it had drawn other random numbers";

class RandomInStep : public FourProcesses {
 protected:
  // What a collective over `mesh` says after `fill`, with generators of which
  // rank 2's differs. The world is one of its own: its groups break.
  static std::string error_after(
      std::vector<int64_t> shape,
      const std::function<void(const DeviceMesh&)>& fill,
      const std::function<void(const DeviceMesh&)>& talk) {
    std::string text;
    {
      const World world = World::from_environment(1, {seconds(30)});
      const auto mesh = init_device_mesh("cpu", shape);
      torch::manual_seed(world.rank() == 2 ? 8 : 7);
      fill(mesh);
      try {
        talk(mesh);
      } catch (const c10::Error& error) {
        text = error.what_without_backtrace();
      }
      test_world().barrier();
    }
    torch::manual_seed(0);  // in step again
    test_world().barrier();
    return text;
  }

  static void reduce(const DeviceMesh& mesh, int64_t dim) {
    Placements from(mesh.ndim(), Replicate());
    from[dim] = Partial();
    DTensor::from_local(at::ones({3}), mesh, from)
        .redistribute(Placements(mesh.ndim(), Replicate()));
  }
};

TEST_F(RandomInStep, ReplicasThatDifferAreFound) {
  const auto talk = [](const DeviceMesh& mesh) { reduce(mesh, 0); };
  const std::vector<std::function<void(const DeviceMesh&)>> fills{
      [](const DeviceMesh& mesh) { rand({4}, mesh); },
      [](const DeviceMesh& mesh) {
        zeros({4}, mesh).normal_(0, 1, std::nullopt);
      },
      [](const DeviceMesh& mesh) {
        torch::dropout(ones({4}, mesh), 0.5, /*train=*/true);
      },
      // Has no rule: drawn from a seed that the ranks share.
      [](const DeviceMesh& mesh) { at::poisson(ones({4}, mesh)); }};
  for (size_t i = 0; i < fills.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_THAT(error_after({4}, fills[i], talk), HasSubstr(kFound));
  }
}

// Shards are different numbers anyway: nothing is wrong.
TEST_F(RandomInStep, ShardsMayBeDrawnByAnyGenerator) {
  const auto fill = [](const DeviceMesh& mesh) { rand({8}, mesh, {Shard(0)}); };
  const auto talk = [](const DeviceMesh& mesh) { reduce(mesh, 0); };
  EXPECT_EQ(error_after({4}, fill, talk), "");
}

TEST_F(RandomInStep, OnlyRanksThatShareTheNumbersMustAgree) {
  // Along dim 1 are [0, 1] and [2, 3]; along dim 0, [0, 2] and [1, 3].
  const auto fill = [](const DeviceMesh& mesh) {
    rand({8}, mesh, {Shard(0), Replicate()});
  };
  const auto along = [](int64_t dim) {
    return [dim](const DeviceMesh& mesh) { reduce(mesh, dim); };
  };
  EXPECT_EQ(error_after({2, 2}, fill, along(0)), "");
  const auto text = error_after({2, 2}, fill, along(1));
  if (test_world().rank() >= 2) {
    EXPECT_THAT(text, HasSubstr(kFound));
  } else {
    EXPECT_EQ(text, "");
  }
}

TEST_F(RandomInStep, AGeneratorOfItsOwnForWhatDiffers) {
  const auto fill = [](const DeviceMesh& mesh) {
    torch::manual_seed(7);
    auto own = at::detail::createCPUGenerator(test_world().rank());
    at::rand({4}, own);
    rand({4}, mesh);
  };
  const auto talk = [](const DeviceMesh& mesh) { reduce(mesh, 0); };
  EXPECT_EQ(error_after({4}, fill, talk), "");
}

}  // namespace random_in_step_test
}  // namespace tessera::testing
