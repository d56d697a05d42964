// Adds two distributed tensors on two ranks, simulated in this process, and
// checks the sum against the plain one.
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <iostream>

namespace ts = tessera;

int main() {
  auto world = ts::World::simulate(2);
  auto mesh = ts::init_device_mesh("cpu", {2});

  auto a = torch::arange(10.0);
  auto b = torch::full({10}, 0.5);
  auto da = ts::distribute_tensor(a, mesh, {ts::Shard(0)});
  auto db = ts::distribute_tensor(b, mesh, {ts::Shard(0)});

  // The result of an op is an at::Tensor; printing shows the layout and shards.
  at::Tensor sum = da + db;
  std::cout << sum << "\n";
  if (!torch::equal(ts::DTensor(sum).full_tensor(), a + b)) {
    std::cerr << "the distributed sum differs from the plain one\n";
    return 1;
  }
  std::cout << "the distributed sum equals the plain one\n";
}
