// Random numbers on a GPU: the bits of the CPU's.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kernels/random/random_fill.h"
#include "tessera/tessera.h"

namespace ts = tessera;

namespace tessera::detail {
namespace gpu_random_test {

TEST(GpuRandom, TheSameBitsOnEveryDevice) {
  const RandomRegion region{{3, 40, 50}, {0, 30, 30}, {7, 100, 200}};
  const RandomDraw draws[] = {
      {.distribution = Distribution::kUniform, .a = -1.7, .b = 3.1},
      {.distribution = Distribution::kNormal, .a = 0.3, .b = 1.9},
      {.distribution = Distribution::kExponential, .a = 0.7},
      {.distribution = Distribution::kBernoulli, .a = 0.3},
      {.distribution = Distribution::kInteger, .from = -5, .range = 1'000'003}};
  for (const auto& draw : draws) {
    for (const auto dtype :
         {at::kDouble,
          at::kFloat,
          at::kHalf,
          at::kBFloat16,
          at::kLong,
          at::kBool}) {
      const RandomStream stream{0x123456789abcdef, 17};
      const at::Tensor here = at::empty({40, 30, 100}, dtype);
      const at::Tensor there = here.cuda();
      fill_random_(here, draw, stream, region);
      fill_random_(there, draw, stream, region);
      EXPECT_TRUE(at::equal(here, there.cpu())) << dtype;
      const at::Tensor strided =
          at::empty({30, 40, 100}, dtype).cuda().transpose(0, 1);
      fill_random_(strided, draw, stream, region);
      EXPECT_TRUE(at::equal(here, strided.cpu())) << dtype;
    }
  }
}

TEST(GpuRandom, OfDistributedTensors) {
  const auto world = ts::World::simulate(3);
  const auto drawn = [&](const char* device) {
    ts::manual_seed(5);
    const auto mesh = ts::init_device_mesh(device, {3});
    const auto x = ts::distribute_tensor(
        torch::empty({7, 5}, torch::Device(device)), mesh, {ts::Shard(0)});
    at::Tensor(x).normal_();
    return x.full_tensor().cpu();
  };
  EXPECT_TRUE(at::equal(drawn("cpu"), drawn("cuda")));
}

}  // namespace gpu_random_test
}  // namespace tessera::detail
