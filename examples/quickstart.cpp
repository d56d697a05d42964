// Trains a small text classifier laid out over four ranks, beside the same
// model on one device.
//
//   quickstart                       four ranks, simulated in this process
//   torchrun --no-python --nproc-per-node 4 quickstart      four processes
//   quickstart --ranks 1024 --meta   no data: only layouts and communication
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <iomanip>
#include <iostream>
#include <string>

namespace ts = tessera;

constexpr int64_t kWords = 1000, kWidth = 64, kHidden = 256, kClasses = 10;
constexpr int64_t kBatch = 32, kLength = 12;

// An ordinary module: nothing in it knows of ranks.
struct ClassifierImpl : torch::nn::Module {
  torch::nn::Embedding words{kWords, kWidth};
  torch::nn::Linear up{kWidth, kHidden};
  torch::nn::Linear down{kHidden, kClasses};

  ClassifierImpl() {
    register_module("words", words);
    register_module("up", up);
    register_module("down", down);
  }

  torch::Tensor forward(const torch::Tensor& ids) {
    const auto text = words(ids).mean(/*dim=*/1);
    return down(torch::relu(up(text)));
  }
};
TORCH_MODULE(Classifier);

// Who holds what. The table is column-wise sharded, the first layer by its
// outputs, the second by its inputs; what is not named here is replicated.
void partition(
    const std::string& name,
    torch::nn::Module& module,
    const ts::DeviceMesh& mesh) {
  if (name == "words") {
    ts::distribute_(
        module.as<torch::nn::Embedding>()->weight, mesh, {ts::Shard(1)});
  } else if (name == "up") {
    auto* layer = module.as<torch::nn::Linear>();
    ts::distribute_(layer->weight, mesh, {ts::Shard(0)});
    ts::distribute_(layer->bias, mesh, {ts::Shard(0)});
  } else if (name == "down") {
    auto* layer = module.as<torch::nn::Linear>();
    ts::distribute_(layer->weight, mesh, {ts::Shard(1)});
  }
}

// One step of training: the same code on one device and on many.
torch::Tensor train_step(
    Classifier& model,
    torch::optim::Optimizer& optimizer,
    const torch::Tensor& ids,
    const torch::Tensor& labels) {
  optimizer.zero_grad();
  auto loss = torch::cross_entropy_loss(model(ids), labels);
  loss.backward();
  optimizer.step();
  return loss.detach();
}

void print_layouts(const Classifier& model) {
  for (const auto& parameter : model->named_parameters()) {
    const ts::DTensor tensor(parameter.value());
    std::cout << "  " << std::left << std::setw(14) << parameter.key()
              << std::setw(12) << c10::str(tensor.sizes())
              << ts::to_string(tensor.placements()) << "\n";
  }
}

int main(int argc, char** argv) {
  int64_t ranks = 4;
  bool meta = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--meta") {
      meta = true;
    } else if (option == "--ranks" && i + 1 < argc) {
      ranks = std::stoll(argv[++i]);
    } else {
      std::cerr << "usage: quickstart [--ranks N] [--meta]\n";
      return 2;
    }
  }

  // torchrun, mpirun or Slurm say who we are; alone, all ranks live here.
  const auto world = ts::World::from_environment(ranks);
  // On a mesh of meta devices shards have shapes and no data.
  const auto mesh =
      ts::init_device_mesh(meta ? "meta" : "cpu", {world.size()}, {"model"});
  if (world.rank() != 0) std::cout.setstate(std::ios::failbit);

  torch::manual_seed(1);
  const auto ids = torch::randint(kWords, {kBatch, kLength});
  const auto labels = ids.sum(1).remainder(kClasses);
  torch::manual_seed(2);
  Classifier one_device;
  torch::manual_seed(2);
  Classifier model;

  // The optimizers are made first: parameters are converted in place.
  torch::optim::Adam one_device_optimizer(one_device->parameters(), 0.01);
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  ts::distribute_module(model, mesh, partition);
  std::cout << "the parameters on " << world.size() << " ranks\n";
  print_layouts(model);

  const auto all_ids = ts::distribute_tensor(ids, mesh);
  const auto all_labels = ts::distribute_tensor(labels, mesh);
  const int steps = meta ? 1 : 10;
  std::string communication;
  for (int step = 1; step <= steps; ++step) {
    const ts::CommDebugMode comm;
    const auto loss = train_step(model, optimizer, all_ids, all_labels);
    communication = comm.generate_comm_debug_tracing_table();
    if (meta) continue;
    const auto expected =
        train_step(one_device, one_device_optimizer, ids, labels);
    std::cout << "step " << step << " loss " << std::fixed
              << std::setprecision(4)
              << ts::DTensor(loss).full_tensor().item<float>() << " one device "
              << expected.item<float>() << "\n";
  }
  std::cout << "the communication of one step\n" << communication;
}
