#include "redistribute/raw_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>

namespace tessera::bench {

namespace {

using c10d::ProcessGroupGloo;

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  TORCH_CHECK(
      value != nullptr,
      "[bench_redistribute] ",
      name,
      " is not set: start with torchrun --standalone --no-python");
  return value;
}

int64_t number(const char* name) { return std::atoll(environment(name)); }

c10::intrusive_ptr<ProcessGroupGloo> connect(int64_t rank, int64_t size) {
  c10d::TCPStoreOptions where;
  where.port = static_cast<uint16_t>(number("MASTER_PORT"));
  // The launcher's agent serves the store; every rank is a client.
  where.isServer = false;
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      "bench_redistribute/raw",
      c10::make_intrusive<c10d::TCPStore>(environment("MASTER_ADDR"), where));
  auto options = ProcessGroupGloo::Options::create();
  options->devices.push_back(
      ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  // As torch.distributed makes it.
  options->threads = 2;
  return c10::make_intrusive<ProcessGroupGloo>(
      store, static_cast<int>(rank), static_cast<int>(size), options);
}

std::vector<at::Tensor> pieces(const at::Tensor& whole, int64_t count) {
  return whole.chunk(count, 0);
}

}  // namespace

struct RawGroup::Backend {
  c10::intrusive_ptr<ProcessGroupGloo> gloo;
};

RawGroup::RawGroup() : rank_(number("RANK")), size_(number("WORLD_SIZE")) {
  backend_ = std::make_unique<Backend>(Backend{connect(rank_, size_)});
}

RawGroup::~RawGroup() = default;

void RawGroup::all_gather(at::Tensor& out, const at::Tensor& in) {
  at::Tensor input = in;
  backend_->gloo->_allgather_base(out, input)->wait();
}

void RawGroup::all_gather_list(at::Tensor& out, const at::Tensor& in) {
  std::vector<std::vector<at::Tensor>> outputs{pieces(out, size_)};
  std::vector<at::Tensor> inputs{in};
  backend_->gloo->allgather(outputs, inputs)->wait();
}

void RawGroup::all_reduce(at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  backend_->gloo->allreduce(tensors)->wait();
}

void RawGroup::reduce_scatter(at::Tensor& out, const at::Tensor& in) {
  at::Tensor input = in;
  backend_->gloo->_reduce_scatter_base(out, input)->wait();
}

void RawGroup::all_to_all(at::Tensor& out, const at::Tensor& in) {
  at::Tensor input = in;
  std::vector<int64_t> even;
  backend_->gloo->alltoall_base(out, input, even, even)->wait();
}

void RawGroup::barrier() { backend_->gloo->barrier()->wait(); }

double RawGroup::max(double value) {
  std::vector<at::Tensor> tensors{at::full({1}, value, at::kDouble)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  backend_->gloo->allreduce(tensors, options)->wait();
  return tensors[0].item<double>();
}

}  // namespace tessera::bench
