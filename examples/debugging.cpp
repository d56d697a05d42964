// Three views of what happens: who holds what, how a layout came about,
// what was sent. docs/debugging.md explains the output.
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>

namespace ts = tessera;

int main(int argc, char** argv) {
  const auto world = ts::World::from_environment(4);
  const auto mesh = ts::init_device_mesh("cpu", {2, 2}, {"data", "model"});
  if (world.rank() != 0) std::cout.setstate(std::ios::failbit);

  const auto x = ts::distribute_tensor(
      torch::randn({6, 8}), mesh, {ts::Shard(0), ts::Replicate()});
  const auto w = ts::distribute_tensor(
      torch::randn({8, 5}).requires_grad_(),
      mesh,
      {ts::Replicate(), ts::Shard(1)});
  std::cout << ts::visualize_sharding(w) << "\n";

  const ts::CommDebugMode comm;
  const auto y = torch::mm(x, w);
  std::cout << ts::visualize_sharding(y) << "\n";
  std::cout << ts::explain("aten::_softmax", {y, /*dim=*/1, false}) << "\n";
  torch::softmax(y, 1).pow(2).sum().backward();
  std::cout << comm << "\n";

  // Of more than two dimensions, and with ranks that hold nothing.
  std::cout << ts::visualize_sharding(
      ts::empty({1, 3, 8}, mesh, {ts::Shard(0), ts::Shard(2)}));

  // debugging picture.svg
  if (argc > 1) std::ofstream(argv[1]) << ts::visualize_sharding_svg(y);
}
