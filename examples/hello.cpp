#include <tessera/tessera.h>
#include <torch/torch.h>

#include <iostream>

namespace ts = tessera;

int main() {
  // The ranks of torchrun, mpirun or Slurm; without a launcher, 4 simulated.
  auto world = ts::World::from_environment(/*otherwise_simulate=*/4);
  auto mesh = ts::init_device_mesh("cpu", {4}, {"model"});

  torch::nn::Linear layer(8, 6);
  torch::optim::SGD optimizer(layer->parameters(), 0.1);
  // In place: the module and the optimizer keep the same tensor.
  ts::distribute_(layer->weight, mesh, {ts::Shard(0)});
  ts::distribute_(layer->bias, mesh, {ts::Shard(0)});

  auto x = ts::distribute_tensor(torch::ones({5, 8}), mesh);
  ts::CommDebugMode comm;
  auto y = layer(x);  // an at::Tensor, sharded by columns; nothing is sent
  auto loss = y.pow(2).mean();
  loss.backward();
  optimizer.step();

  if (world.rank() == 0) {
    std::cout << "y: " << ts::DTensor(y).spec()->str() << "\n"
              << "loss: " << ts::to_string(ts::DTensor(loss).placements())
              << ", " << comm.get_total_counts() << " collectives\n"
              << ts::visualize_sharding(layer->weight);
  }
}
