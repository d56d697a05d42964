// Trains a recommender whose embedding tables are row-wise sharded, on batches
// that each rank reads for itself.
//
//   recommender                                        four simulated ranks
//   torchrun --no-python --nproc-per-node 4 recommender      four processes
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <iomanip>
#include <iostream>

namespace ts = tessera;

constexpr int64_t kUsers = 1000, kItems = 500, kWidth = 16;
constexpr int64_t kSamples = 999, kBatch = 64;  // kBatch is that of one rank

// With sparse gradients a step of the optimizer costs the rows of the batch,
// not those of the table.
torch::nn::EmbeddingOptions rows_of_table(int64_t rows) {
  return torch::nn::EmbeddingOptions(rows, kWidth).sparse(true);
}

// An ordinary module.
struct RecommenderImpl : torch::nn::Module {
  torch::nn::Embedding users{rows_of_table(kUsers)};
  torch::nn::Embedding items{rows_of_table(kItems)};
  torch::nn::Linear hidden{2 * kWidth, 32};
  torch::nn::Linear score{32, 1};

  RecommenderImpl() {
    register_module("users", users);
    register_module("items", items);
    register_module("hidden", hidden);
    register_module("score", score);
  }

  torch::Tensor forward(const torch::Tensor& user, const torch::Tensor& item) {
    const auto features = torch::cat({users(user), items(item)}, /*dim=*/1);
    return score(torch::relu(hidden(features))).squeeze(1);
  }
};
TORCH_MODULE(Recommender);

struct Batch {
  std::vector<at::Tensor> users, items, labels;  // one of each per local rank
};

// Stands for a reader of files: each rank has samples of its own.
Batch read_batch(const ts::DeviceMesh& mesh, int64_t step) {
  Batch batch;
  for (const int64_t position : mesh.local_positions()) {
    const auto mine = ts::chunk(kSamples, mesh.size(), position);
    const int64_t begin = std::min(step * kBatch, mine.size);
    const int64_t end = std::min(begin + kBatch, mine.size);
    const auto id = torch::arange(mine.begin + begin, mine.begin + end);
    batch.users.push_back((id * 7919).remainder(kUsers));
    batch.items.push_back((id * 104729).remainder(kItems));
    batch.labels.push_back(id.remainder(3).eq(0).to(torch::kFloat));
  }
  return batch;
}

int main() {
  const auto world = ts::World::from_environment(/*otherwise_simulate=*/4);
  const auto mesh = ts::init_device_mesh("cpu", {world.size()});
  if (world.rank() != 0) std::cout.setstate(std::ios::failbit);

  torch::manual_seed(1);
  Recommender model;
  // Rows of the tables on different ranks; the other parameters replicated.
  ts::distribute_(model->users->weight, mesh, {ts::Shard(0)});
  ts::distribute_(model->items->weight, mesh, {ts::Shard(0)});
  ts::distribute_module(model, mesh);
  torch::optim::Adagrad optimizer(model->parameters(), 0.1);

  // The last batch has 58, 58, 58 and 57 rows: uneven = true.
  const auto batch_of = [&](const std::vector<at::Tensor>& shards) {
    return ts::DTensor::from_local(
        shards, mesh, {ts::Shard(0)}, {.uneven = true});
  };
  for (int64_t step = 0; step < 4; ++step) {
    const auto batch = read_batch(mesh, step);
    optimizer.zero_grad();
    const auto scores = model(batch_of(batch.users), batch_of(batch.items));
    const auto loss = torch::binary_cross_entropy_with_logits(
        scores, batch_of(batch.labels), {}, {}, at::Reduction::Mean);
    loss.backward();
    optimizer.step();
    const auto value = loss.item<float>();  // on every rank: it communicates
    std::cout << "step " << step << " of " << scores.size(0) << " rows, loss "
              << std::setprecision(4) << value << "\n";
  }
  const ts::DTensor users(model->users->weight);
  std::cout << "row 777 of the users is on rank " << users.owners(0, 777)[0]
            << "\n";
}
