// Ranks whose shards differ in size, and that have not said so, learn of it
// with the next collective. Run as processes.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <thread>

#include "tessera/tessera.h"
#include "testing/processes.h"
#include "testing/throws.h"

namespace tessera::testing {
namespace assumed_shapes_test {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class AssumedShapes : public FourProcesses {};

TEST_F(AssumedShapes, ThatDifferAreFoundByTheNextCollective) {
  auto world = World::from_environment();
  const auto mesh = init_device_mesh("cpu", {4});
  const auto x = DTensor::from_local(
      torch::ones({world.rank() == 3 ? 3 : 4, 2}), mesh, {Shard(0)});
  // The mean is of 32 elements on three ranks and of 24 on one; its message is
  // a float on all of them.
  const auto text = error_of([&] { x.mean().item<float>(); });
  EXPECT_THAT(
      text,
      AnyOf(
          HasSubstr("from_local had made tensors of different shapes"),
          HasSubstr("stopped with this error"),
          HasSubstr("has left"),
          HasSubstr("connection is lost")));
  if (world.rank() == 3) {
    EXPECT_THAT(text, HasSubstr("need its option uneven"));
  }
  world.barrier();
}

// Terms of one size and of different shapes used to be reduced without a word.
TEST_F(AssumedShapes, OfTermsThatDifferAreFoundByTheirReduction) {
  for (const auto op : {ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max}) {
    for (const bool is_given : {false, true}) {
      auto world = World::from_environment();
      const auto mesh = init_device_mesh("cpu", {4});
      const auto shape = world.rank() == 2 ? Sizes{2, 3} : Sizes{3, 2};
      FromLocalOptions options;
      if (is_given) {
        options.shape = shape;
      }
      const auto x =
          DTensor::from_local(torch::ones(shape), mesh, {Partial(op)}, options);
      const auto text = error_of([&] { x.full_tensor(); });
      EXPECT_THAT(
          text,
          AnyOf(
              HasSubstr("from_local had made tensors of different shapes"),
              HasSubstr("stopped with this error"),
              HasSubstr("has left"),
              HasSubstr("connection is lost")));
      if (world.rank() == 2) {
        EXPECT_THAT(text, HasSubstr("terms of a Partial have one shape"));
      }
      world.barrier();
    }
  }
}

TEST_F(AssumedShapes, ThatAreTheSameAreNoError) {
  auto world = World::from_environment();
  const auto mesh = init_device_mesh("cpu", {2, 2});
  for (int64_t rows = 1; rows < 4; ++rows) {
    const auto x =
        DTensor::from_local(torch::ones({rows, 2}), mesh, {Shard(0), Shard(0)});
    EXPECT_EQ(x.mean().item<float>(), 1);
    // Replicas need no size; a shape that is given is checked where it is
    // given.
    const auto r = DTensor::from_local(torch::ones({rows, 2}), mesh);
    EXPECT_EQ(r.sum().item<float>(), 2 * rows);
    const auto y = DTensor::from_local(
        torch::ones(
            {chunk(
                 chunk(4 + rows, 2, world.rank() / 2).size, 2, world.rank() % 2)
                 .size}),
        mesh,
        {Shard(0), Shard(0)},
        {.shape = Sizes{4 + rows}});
    EXPECT_EQ(y.sum().item<float>(), 4 + rows);
  }
}

// A thread that makes batches ahead is in no step with the one that trains.
TEST_F(AssumedShapes, OfAnotherThreadAreItsOwn) {
  auto world = World::from_environment();
  const auto mesh = init_device_mesh("cpu", {4});
  std::thread other([&] {
    for (int64_t i = 0; i <= world.rank(); ++i) {
      DTensor::from_local(torch::ones({2}), mesh, {Shard(0)});
    }
  });
  other.join();
  const auto x = DTensor::from_local(torch::ones({2}), mesh, {Shard(0)});
  EXPECT_EQ(x.sum().item<float>(), 8);
}

}  // namespace assumed_shapes_test
}  // namespace tessera::testing
