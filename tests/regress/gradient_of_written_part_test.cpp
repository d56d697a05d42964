// A part of a tensor is written, and the gradient that comes back is sharded on
// the dimension that the part was taken from: it was refused.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace gradient_of_written_part_test {

using Write = std::function<void(at::Tensor&, const at::Tensor&)>;

// The gradients of base and source, of `write(base, source)`.
std::vector<at::Tensor> gradients(
    const at::Tensor& base,
    const at::Tensor& source,
    const at::Tensor& incoming,
    const Write& write) {
  auto written = base * 1;
  write(written, source);
  return torch::autograd::grad({written}, {base, source}, {incoming});
}

void expect_as_on_one_device(at::IntArrayRef source_sizes, const Write& write) {
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    const auto value = [](at::IntArrayRef sizes) {
      return torch::arange(c10::multiply_integers(sizes), at::kDouble)
          .view(sizes);
    };
    const auto placed = [&](const at::Tensor& t, const ts::Placement& p) {
      return ts::distribute_tensor(t, mesh, {p});
    };
    const auto base = value({4, 3, 8}).requires_grad_();
    const auto source = value(source_sizes).requires_grad_();
    const auto incoming = value({4, 3, 8}).add(1);
    const auto expected = gradients(base, source, incoming, write);
    for (const ts::Placement& of_gradient :
         {ts::Placement(ts::Replicate()),
          ts::Placement(ts::Shard(0)),
          ts::Placement(ts::Shard(1)),
          ts::Placement(ts::Shard(2))}) {
      SCOPED_TRACE(ts::to_string({of_gradient}));
      const auto found = gradients(
          placed(base.detach(), ts::Replicate()).requires_grad_(),
          placed(source.detach(), ts::Replicate()).requires_grad_(),
          placed(incoming, of_gradient),
          write);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(ts::DTensor(found[i]).full_tensor().equal(expected[i]));
      }
    }
  });
}

TEST(GradientOfWrittenPart, Slices) {
  expect_as_on_one_device({4, 3, 5}, [](at::Tensor& t, const at::Tensor& from) {
    t.slice(2, 2, 7).copy_(from);
  });
  expect_as_on_one_device({4, 2, 4}, [](at::Tensor& t, const at::Tensor& from) {
    t.slice(1, 1).slice(2, 0, 8, 2).mul_(from);
  });
}

TEST(GradientOfWrittenPart, SelectedRows) {
  expect_as_on_one_device({3, 8}, [](at::Tensor& t, const at::Tensor& from) {
    t.select(0, 2).copy_(from);
  });
  expect_as_on_one_device({4, 3}, [](at::Tensor& t, const at::Tensor& from) {
    t.select(2, 5).add_(from);
  });
}

TEST(GradientOfWrittenPart, Transposed) {
  expect_as_on_one_device({8, 3, 4}, [](at::Tensor& t, const at::Tensor& from) {
    t.transpose(0, 2).mul_(from);
  });
}

}  // namespace gradient_of_written_part_test
