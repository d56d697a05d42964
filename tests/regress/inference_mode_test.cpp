// In inference mode, where serving runs, a distributed tensor that was made
// outside could not be viewed: "Cannot set version_counter for inference
// tensor". tests/dispatch/inference_test.cpp runs every sample there.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace inference_mode_test {

using Call = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

void expect_value(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_TRUE(ts::is_dtensor(actual));
  EXPECT_EQ(actual.is_inference(), expected.is_inference());
  EXPECT_EQ(
      ts::testing::difference(ts::DTensor(actual).full_tensor(), expected), "");
}

// On a 4 x 6 tensor and indices below 4.
const std::vector<Call>& calls() {
  using T = const at::Tensor&;
  static const std::vector<Call> all = {
      [](T x, T) { return x.view({24}); },
      [](T x, T) { return x.view({2, 2, 6}).view({24}); },
      [](T x, T) { return x.t(); },
      [](T x, T) { return x.t().mm(x); },
      [](T x, T) { return x.detach(); },
      [](T x, T) { return x.slice(0, 1, 3); },
      [](T x, T) { return x.slice(0, 1, 3).add(1); },
      [](T x, T) { return x.split(2, 0)[1]; },
      [](T x, T) { return x.squeeze().unsqueeze(0).expand({3, 4, 6}); },
      [](T x, T i) { return x.take_along_dim(i, 0); },
      [](T x, T i) { return at::embedding(x, i); },
      [](T x, T i) {
        return std::get<0>(torch::embedding_bag(
            x, i.reshape({-1}), i.select(0, 0).slice(0, 0, 1) * 0));
      },
      [](T x, T) { return x.clone().unsqueeze_(0); },
      [](T x, T) { return x.reshape({3, 8}).contiguous(); },
      [](T x, T) { return x.softmax(0); },
      [](T x, T) { return x.to(at::kDouble); },
      [](T x, T) { return at::layer_norm(x, {6}); },
  };
  return all;
}

TEST(InferenceMode, ViewsAndLookups) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    torch::manual_seed(3);  // ranks outside other meshes drew less
    const auto value = torch::randn({4, 6});
    const auto index = torch::arange(24).view({4, 6}).remainder(4);
    for (const auto& layout : ts::testing::layouts(mesh, 2)) {
      SCOPED_TRACE(ts::to_string(layout));
      auto outside = ts::distribute_tensor(value, mesh, layout);
      auto parameter = ts::DTensor(outside.clone().requires_grad_());
      const auto plain_parameter = value.clone().requires_grad_();
      const auto ids = ts::distribute_tensor(index, mesh);
      const c10::InferenceMode inference;
      const auto inside = ts::distribute_tensor(value, mesh, layout);
      EXPECT_TRUE(inside.is_inference());
      const auto inside_plain = value.clone();
      for (size_t i = 0; i < calls().size(); ++i) {
        SCOPED_TRACE("call " + std::to_string(i));
        const auto& call = calls()[i];
        expect_value(call(outside, ids), call(value, index));
        expect_value(call(parameter, ids), call(plain_parameter, index));
        expect_value(call(inside, ids), call(inside_plain, index));
      }
    }
  });
}

// Writes reach the base and its views, and count where plain ones count.
TEST(InferenceMode, Writes) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto made_outside = ts::ones({4, 6}, mesh, {ts::Shard(0)});
    {
      const c10::InferenceMode inference;
      const auto version = made_outside.unsafeGetTensorImpl()
                               ->version_counter()
                               .current_version();
      made_outside.t().add_(1);
      EXPECT_TRUE(made_outside.full_tensor().equal(torch::full({4, 6}, 2.0f)));
      EXPECT_GT(
          made_outside.unsafeGetTensorImpl()
              ->version_counter()
              .current_version(),
          version);
      const auto inside = ts::ones({4, 6}, mesh, {ts::Shard(0)});
      inside.t().add_(1);
      EXPECT_TRUE(inside.full_tensor().equal(torch::full({4, 6}, 2.0f)));
    }
    // A view of a normal tensor is a normal tensor: it may be written outside.
    at::Tensor view;
    at::Tensor result;
    {
      const c10::InferenceMode inference;
      view = made_outside.t();
      result = made_outside * 2;
    }
    view.add_(1);
    EXPECT_TRUE(made_outside.full_tensor().equal(torch::full({4, 6}, 3.0f)));
    EXPECT_THROW(result.add_(1), c10::Error);
  }));
}

// Out of the mode a view of an inference tensor is one: it said that it was
// not.
TEST(InferenceMode, ViewsMadeOutside) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto index = torch::arange(24).view({4, 6}).remainder(4);
    for (const auto& layout : ts::testing::layouts(mesh, 2)) {
      SCOPED_TRACE(ts::to_string(layout));
      at::Tensor inside;
      at::Tensor inside_plain;
      {
        const c10::InferenceMode inference;
        inside_plain = torch::arange(24, at::kFloat).view({4, 6}).clone();
        inside = ts::distribute_tensor(inside_plain, mesh, layout);
      }
      const auto ids = ts::distribute_tensor(index, mesh);
      for (size_t i = 0; i < calls().size(); ++i) {
        SCOPED_TRACE("call " + std::to_string(i));
        expect_value(calls()[i](inside, ids), calls()[i](inside_plain, index));
      }
      // One element of a sharded dimension is a copy that stands for a view.
      expect_value(inside.select(0, 3), inside_plain.select(0, 3));
      EXPECT_THROW(inside.t().add_(1), c10::Error);
    }
  });
}

// Modules whose parameters are made, and distributed, in and out of the mode.
TEST(InferenceMode, Modules) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    torch::nn::Sequential net(
        torch::nn::Embedding(10, 8),
        torch::nn::Linear(8, 6),
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})),
        torch::nn::ReLU(),
        torch::nn::Linear(6, 4),
        torch::nn::Softmax(torch::nn::SoftmaxOptions(-1)));
    net->eval();
    const auto batch = torch::arange(8).view({4, 2});
    at::Tensor expected;
    {
      const c10::InferenceMode inference;
      expected = net->forward(batch);
    }
    const auto distribute = [&] {
      for (auto& item : net->named_parameters()) {
        const auto layout = item.value().dim() == 2
                                ? ts::Placement(ts::Shard(0))
                                : ts::Placement(ts::Replicate());
        ts::distribute_(item.value(), mesh, {layout});
      }
    };
    const auto check = [&] {
      for (const auto& layout : ts::testing::layouts(mesh, 2)) {
        SCOPED_TRACE(ts::to_string(layout));
        const at::Tensor ids = ts::distribute_tensor(batch, mesh, layout);
        const auto out = net->forward(ids);
        EXPECT_TRUE(out.is_inference());
        EXPECT_EQ(
            ts::testing::difference(ts::DTensor(out).full_tensor(), expected),
            "");
      }
    };
    {
      // Distributed in the mode: a parameter stays one that may be trained.
      const c10::InferenceMode inference;
      distribute();
      check();
    }
    for (const auto& parameter : net->parameters()) {
      EXPECT_FALSE(parameter.is_inference());
      EXPECT_TRUE(parameter.requires_grad());
    }
    const at::Tensor ids = ts::distribute_tensor(batch, mesh, {ts::Shard(0)});
    net->forward(ids).sum().backward();
    EXPECT_TRUE(net->parameters()[0].grad().defined());
    const c10::InferenceMode inference;
    check();
  }));
}

// A module with its input; whatever works without gradients works in the mode.
struct Served {
  std::string name;
  torch::nn::AnyModule module;
  at::Tensor input;
};

std::vector<Served> served() {
  namespace nn = torch::nn;
  std::vector<Served> all;
  const auto add = [&](const char* name, auto module, at::Tensor input) {
    module->eval();
    all.push_back({name, nn::AnyModule(module), std::move(input)});
  };
  const auto x = torch::randn({4, 6});
  const auto image = torch::randn({4, 2, 6, 6});
  const auto ids = torch::arange(8).view({4, 2});
  add("Linear", nn::Linear(6, 4), x);
  add("Embedding", nn::Embedding(8, 4), ids);
  add("EmbeddingBag", nn::EmbeddingBag(8, 4), ids);
  add("LayerNorm", nn::LayerNorm(nn::LayerNormOptions({6})), x);
  add("GroupNorm", nn::GroupNorm(2, 6), x);
  add("BatchNorm1d", nn::BatchNorm1d(6), x);
  add("Conv2d", nn::Conv2d(2, 3, 3), image);
  add("MaxPool2d", nn::MaxPool2d(2), image);
  add("AvgPool2d", nn::AvgPool2d(2), image);
  add("Flatten", nn::Flatten(), image);
  add("ReLU", nn::ReLU(), x);
  add("ReLU in place", nn::ReLU(nn::ReLUOptions(true)), x);
  add("GELU", nn::GELU(), x);
  add("SiLU", nn::SiLU(), x);
  add("PReLU", nn::PReLU(), x);
  add("GLU", nn::GLU(), x);
  add("Softmax", nn::Softmax(nn::SoftmaxOptions(1)), x);
  add("LogSoftmax", nn::LogSoftmax(nn::LogSoftmaxOptions(0)), x);
  add("Dropout", nn::Dropout(), x);
  add("Identity", nn::Identity(), x);
  add("Unflatten", nn::Unflatten(nn::UnflattenOptions(1, {2, 3})), x);
  add("PixelShuffle", nn::PixelShuffle(1), image);
  add("LocalResponseNorm", nn::LocalResponseNorm(2), image);
  add("Hardtanh", nn::Hardtanh(), x);
  return all;
}

std::string outcome_of(Served& each, const at::Tensor& input) {
  try {
    const auto out = each.module.forward<at::Tensor>(input);
    const auto full =
        ts::is_dtensor(out) ? ts::DTensor(out).full_tensor() : out;
    return c10::str(full);
  } catch (const c10::Error& error) {
    return "refused";
  }
}

TEST(InferenceMode, ModulesWorkAsTheyDoWithoutGradients) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    size_t worked = 0;
    for (auto& each : served()) {
      torch::manual_seed(1);
      const auto parameters = each.module.ptr()->parameters();
      const auto buffers = each.module.ptr()->buffers();
      for (const auto& tensors : {parameters, buffers}) {
        for (const auto& tensor : tensors) {
          ts::distribute_(tensor, mesh, {});
        }
      }
      for (const auto& layout :
           {ts::Placement(ts::Replicate()), ts::Placement(ts::Shard(0))}) {
        SCOPED_TRACE(each.name + " of " + layout.str());
        std::string expected;
        const auto input = [&]() -> at::Tensor {
          return ts::distribute_tensor(each.input, mesh, {layout});
        };
        {
          const torch::NoGradGuard no_grad;
          expected = outcome_of(each, input());
        }
        worked += expected == "refused" ? 0 : 1;
        const auto outside = input();
        const c10::InferenceMode inference;
        EXPECT_EQ(outcome_of(each, outside), expected);
        EXPECT_EQ(outcome_of(each, input()), expected);
      }
    }
    EXPECT_GE(worked, 30);
  }));
}

}  // namespace inference_mode_test
