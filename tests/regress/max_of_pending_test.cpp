// The backward of max compares its input with its result. A sum that was
// pending on several mesh dimensions used to be reduced in one order for the
// forward and in another for the backward: the two differed in the last bit and
// the gradient was lost.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace max_of_pending_test {

// Terms whose sum depends on the order in which they are taken.
at::Tensor term(int64_t position, at::IntArrayRef sizes) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(77 + position);
  return torch::randn(sizes, generator) / 3;
}

ts::DTensor pending(const ts::DeviceMesh& mesh, at::IntArrayRef sizes) {
  std::vector<at::Tensor> terms;
  for (const int64_t position : mesh.local_positions()) {
    terms.push_back(term(position, sizes));
  }
  const ts::Placements placements(mesh.ndim(), ts::Partial());
  return ts::DTensor::from_local(terms, mesh, placements);
}

struct Case {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> value;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"max", [](const at::Tensor& x) { return x.max(); }},
      {"min", [](const at::Tensor& x) { return x.min(); }},
      {"amax", [](const at::Tensor& x) { return x.amax(); }},
      {"amax rows", [](const at::Tensor& x) { return x.amax(1).sum(); }},
      {"amin columns", [](const at::Tensor& x) { return x.amin(0).sum(); }},
      {"max rows",
       [](const at::Tensor& x) { return std::get<0>(x.max(1)).sum(); }},
  };
  return all;
}

TEST(MaxOfPending, KeepsItsGradient) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto x = pending(mesh, {9, 7});
    const auto plain = x.full_tensor();
    for (const auto& [name, value] : cases()) {
      SCOPED_TRACE(name);
      const ts::DTensor leaf(x.detach().requires_grad_());
      value(leaf).backward();
      const auto grad = ts::DTensor(leaf.grad()).full_tensor();
      const auto wanted = plain.detach().requires_grad_();
      value(wanted).backward();
      EXPECT_TRUE(grad.equal(wanted.grad())) << grad << wanted.grad();
    }
  });
}

// A value has the same bits in every layout that it is reduced into.
TEST(MaxOfPending, EveryLayoutHasTheSameBits) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto x = pending(mesh, {9, 7});
    const auto whole = x.full_tensor();
    for (int64_t kept = 0; kept < mesh.ndim(); ++kept) {
      ts::Placements to(mesh.ndim(), ts::Shard(0));
      to[kept] = ts::Replicate();
      EXPECT_TRUE(x.redistribute(to).full_tensor().equal(whole))
          << ts::to_string(to);
      to[kept] = ts::Shard(1);
      EXPECT_TRUE(x.redistribute(to).full_tensor().equal(whole))
          << ts::to_string(to);
    }
  });
}

}  // namespace max_of_pending_test
