#include "dispatch/cases.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/dtensor.h"

namespace tessera::bench {

namespace {

// What an op works on: two matrices, and one to differentiate by.
struct Operands {
  at::Tensor x;
  at::Tensor y;
  at::Tensor replicated;
  at::Tensor leaf;
};

Operands plain_operands() {
  const auto x = at::rand({4, 4});
  return {x, at::rand({4, 4}), at::rand({4, 4}), x.clone().requires_grad_()};
}

Operands distributed_operands(const DeviceMesh& mesh) {
  const auto distributed = [&](const Placement& placement) {
    return DTensor::from_local(at::rand({4, 4}), mesh, {placement});
  };
  return {
      distributed(Shard(0)),
      distributed(Shard(0)),
      distributed(Replicate()),
      distributed(Shard(0)).requires_grad_()};
}

// The ops that plain tensors have, by name.
using Op = void (*)(const Operands&);
struct NamedOp {
  const char* name;
  Op op;
};

const NamedOp kOps[] = {
    {"add", [](const Operands& o) { at::add(o.x, o.y); }},
    {"add_", [](const Operands& o) { o.x.add_(o.y); }},
    {"add_(scalar)", [](const Operands& o) { o.x.add_(1); }},
    {"mul", [](const Operands& o) { at::mul(o.x, o.y); }},
    {"relu", [](const Operands& o) { at::relu(o.x); }},
    {"detach", [](const Operands& o) { o.x.detach(); }},
    {"mm", [](const Operands& o) { at::mm(o.x, o.replicated); }},
    {"t", [](const Operands& o) { o.x.t(); }},
    {"view", [](const Operands& o) { o.x.view({-1}); }},
    {"sum", [](const Operands& o) { o.x.sum(); }},
    {"cat", [](const Operands& o) { at::cat({o.x, o.y}, 1); }},
    {"backward",
     [](const Operands& o) {
       const at::AutoGradMode with_gradients(true);
       o.leaf.mutable_grad().reset();
       ((o.leaf + o.leaf) * o.leaf).sum().backward();
     }},
};

// What only distributed tensors do, beside doing nothing.
std::vector<Case> boundary_cases(const DeviceMesh& mesh) {
  const at::Tensor local = at::rand({4, 4});
  const auto distributed = DTensor::from_local(local, mesh, {Shard(0)});
  return {
      {"from_local",
       [] {},
       [=] { DTensor::from_local(local, mesh, {Shard(0)}); }},
      {"to_local", [] {}, [=] { distributed.to_local(); }},
      {"redistribute", [] {}, [=] { distributed.redistribute({Shard(0)}); }},
  };
}

}  // namespace

std::vector<Case> dispatch_cases(const DeviceMesh& mesh) {
  const auto plain = plain_operands();
  const auto ours = distributed_operands(mesh);
  std::vector<Case> cases;
  for (const auto& [name, op] : kOps) {
    cases.push_back(
        {name, [op, plain] { op(plain); }, [op, ours] { op(ours); }});
  }
  for (auto& boundary : boundary_cases(mesh)) {
    cases.push_back(std::move(boundary));
  }
  return cases;
}

}  // namespace tessera::bench
