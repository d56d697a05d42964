// resume_in_cpp ROOT OPTIMIZER STEPS: resumes the training that
// test_checkpoint_languages.py has begun, and saves what comes of it.
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace ts = tessera;
namespace optim = torch::optim;

namespace {

struct ModelImpl : torch::nn::Module {
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(11, 8));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(8, 3));

  at::Tensor forward(const at::Tensor& ids) { return linear(table(ids)); }
};
TORCH_MODULE(Model);

// All with the defaults of their options: what was saved is what counts. The
// groups are in another order than Python's.
template <typename Optimizer, typename Options>
std::unique_ptr<optim::Optimizer> make(Model& model, Options options) {
  const std::vector<optim::OptimizerParamGroup> groups{
      optim::OptimizerParamGroup(model->linear->parameters()),
      optim::OptimizerParamGroup(model->table->parameters())};
  return std::make_unique<Optimizer>(groups, options);
}

std::unique_ptr<optim::Optimizer> optimizer_for(
    const std::string& name, Model& model) {
  if (name == "Adam") return make<optim::Adam>(model, optim::AdamOptions());
  if (name == "AdamW") return make<optim::AdamW>(model, optim::AdamWOptions());
  if (name == "Adagrad") {
    return make<optim::Adagrad>(model, optim::AdagradOptions());
  }
  if (name == "RMSprop") {
    return make<optim::RMSprop>(model, optim::RMSpropOptions());
  }
  if (name == "SGD") return make<optim::SGD>(model, optim::SGDOptions(1e-3));
  TORCH_CHECK_VALUE(false, "no optimizer is called ", name);
}

}  // namespace

int main(int argc, char** argv) {
  TORCH_CHECK_VALUE(argc == 4, "expected ROOT OPTIMIZER STEPS");
  const std::string root = argv[1];
  const int64_t steps = std::stoll(argv[3]);
  const auto world = ts::World::simulate(2);
  const auto mesh = ts::init_device_mesh("cpu", {2});
  Model model;
  ts::distribute_(model->table->weight, mesh, {ts::Shard(0)});
  ts::distribute_module(model.ptr(), mesh);
  const auto optimizer = optimizer_for(argv[2], model);
  const auto found =
      ts::load_latest(root, *model, {optimizer.get()}, {.prefix = "model."});
  TORCH_CHECK(found, "nothing was saved");
  for (int64_t step = found->step; step < found->step + steps; ++step) {
    const auto ids = torch::arange(6).add(step).remainder(11);
    optimizer->zero_grad();
    model->forward(ts::distribute_tensor(ids, mesh)).square().sum().backward();
    optimizer->step();
  }
  ts::save(
      root,
      *model,
      {optimizer.get()},
      {.step = found->step + steps, .prefix = "model."});
  return 0;
}
