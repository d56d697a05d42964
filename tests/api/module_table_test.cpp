// Every module of torch::nn, its parameters sharded on each dimension or
// replicated and its batch sharded or not, in training and not, against one
// device. python/tests/test_cpp_modules.py fails when torch has a module that
// is not named here.
#include <gtest/gtest.h>
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "testing/worlds.h"

namespace tessera {
namespace module_table_test {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;

// The tensors of a result, laid out flat.
void flatten(const at::Tensor& tensor, Tensors& out) {
  if (tensor.defined()) {
    out.push_back(tensor);
  }
}
template <typename... Parts>
void flatten(const std::tuple<Parts...>& parts, Tensors& out) {
  std::apply([&](const auto&... part) { (flatten(part, out), ...); }, parts);
}
void flatten(const nn::ASMoutput& parts, Tensors& out) {
  out.push_back(parts.output);
  out.push_back(at::scalar_tensor(parts.loss, at::kDouble));
}

// A module and how to call a copy of it.
struct Row {
  std::shared_ptr<nn::Module> module;
  std::function<Tensors(nn::Module&, const Tensors&)> call;
  Tensors inputs;
  bool random = false;  // in training
  // Another one like it; where unset, a clone.
  std::function<std::shared_ptr<nn::Module>()> make = {};

  std::shared_ptr<nn::Module> another() const {
    return make ? make() : module->clone();
  }
};

nn::CrossEntropyLoss weighted_cross_entropy() {
  return nn::CrossEntropyLoss(
      nn::CrossEntropyLossOptions()
          .weight(torch::tensor({0.5, 1.5, 1.0, 2.0}, at::kDouble))
          .label_smoothing(0.1));
}

template <typename Impl, size_t... I>
Tensors call_module(
    nn::Module& module, const Tensors& inputs, std::index_sequence<I...>) {
  Tensors results;
  flatten(dynamic_cast<Impl&>(module).forward(inputs[I]...), results);
  return results;
}

template <size_t kInputs, typename Holder>
Row row_of(Holder module, Tensors inputs, bool random) {
  using Impl = typename Holder::ContainedType;
  module->to(at::kDouble);
  return {
      module.ptr(),
      [](nn::Module& copy, const Tensors& given) {
        return call_module<Impl>(
            copy, given, std::make_index_sequence<kInputs>());
      },
      std::move(inputs),
      random};
}

at::Tensor x(at::IntArrayRef sizes) { return torch::randn(sizes, at::kDouble); }
at::Tensor positive(at::IntArrayRef sizes) {
  return torch::rand(sizes, at::kDouble) + 0.1;
}
at::Tensor classes(int64_t count, at::IntArrayRef sizes) {
  return torch::randint(count, sizes, at::kLong);
}
at::Tensor signs(at::IntArrayRef sizes) { return classes(2, sizes) * 2 - 1; }

class Table {
 public:
  Table() {
    torch::manual_seed(1);
    add_elementwise();
    add_matrices();
    add_images();
    add_norms();
    add_sequences();
    add_losses();
  }
  const std::map<std::string, Row>& rows() const { return rows_; }

 private:
  template <typename Holder>
  void one(const char* name, Holder module, at::Tensor a, bool random = false) {
    rows_.emplace(name, row_of<1>(std::move(module), {a}, random));
  }
  template <typename Holder>
  void two(const char* name, Holder module, at::Tensor a, at::Tensor b) {
    rows_.emplace(name, row_of<2>(std::move(module), {a, b}, false));
  }
  template <typename Holder>
  void three(
      const char* name,
      Holder module,
      at::Tensor a,
      at::Tensor b,
      at::Tensor c) {
    rows_.emplace(name, row_of<3>(std::move(module), {a, b, c}, false));
  }

  void add_elementwise() {
    const auto v = x({5, 4});
    one("CELU", nn::CELU(), v);
    one("ELU", nn::ELU(), v);
    one("GELU", nn::GELU(), v);
    one("GLU", nn::GLU(), v);
    one("Hardshrink", nn::Hardshrink(), v);
    one("Hardtanh", nn::Hardtanh(), v);
    one("Identity", nn::Identity(), v);
    one("LeakyReLU", nn::LeakyReLU(), v);
    one("LogSigmoid", nn::LogSigmoid(), v);
    one("LogSoftmax", nn::LogSoftmax(1), v);
    one("Mish", nn::Mish(), v);
    one("PReLU", nn::PReLU(nn::PReLUOptions().num_parameters(4)), v);
    one("RReLU", nn::RReLU(), v, true);
    one("ReLU", nn::ReLU(), v);
    one("ReLU6", nn::ReLU6(), v);
    one("SELU", nn::SELU(), v);
    one("SiLU", nn::SiLU(), v);
    one("Sigmoid", nn::Sigmoid(), v);
    one("Softmax", nn::Softmax(1), v);
    one("Softmax2d", nn::Softmax2d(), x({5, 4, 3, 3}));
    one("Softmin", nn::Softmin(1), v);
    one("Softplus", nn::Softplus(), v);
    one("Softshrink", nn::Softshrink(), v);
    one("Softsign", nn::Softsign(), v);
    one("Tanh", nn::Tanh(), v);
    one("Tanhshrink", nn::Tanhshrink(), v);
    one("Threshold", nn::Threshold(0.1, 2.0), v);
    one("AlphaDropout", nn::AlphaDropout(), v, true);
    one("Dropout", nn::Dropout(), v, true);
    one("Dropout2d", nn::Dropout2d(), x({5, 4, 3, 3}), true);
    one("Dropout3d", nn::Dropout3d(), x({5, 4, 2, 2, 2}), true);
    one("FeatureAlphaDropout", nn::FeatureAlphaDropout(), x({5, 4, 3}), true);
  }

  void add_matrices() {
    const auto v = x({5, 4});
    two("Bilinear", nn::Bilinear(4, 3, 6), v, x({5, 3}));
    two("CosineSimilarity", nn::CosineSimilarity(), v, x({5, 4}));
    one("Flatten", nn::Flatten(), x({5, 4, 3}));
    one("Functional", nn::Functional([](at::Tensor t) { return t * 2; }), v);
    one("Linear", nn::Linear(4, 6), v);
    two("PairwiseDistance", nn::PairwiseDistance(), v, x({5, 4}));
    one("Unflatten", nn::Unflatten(nn::UnflattenOptions(1, {2, 2})), v);
    one("Embedding", nn::Embedding(7, 4), classes(7, {5, 3}));
    one("EmbeddingBag", nn::EmbeddingBag(7, 4), classes(7, {5, 3}));
  }

  void add_images() {
    const auto line = x({5, 4, 6});
    const auto image = x({5, 4, 6, 6});
    const auto volume = x({5, 4, 4, 4, 4});
    one("Conv1d", nn::Conv1d(nn::Conv1dOptions(4, 6, 3).padding(1)), line);
    one("Conv2d", nn::Conv2d(nn::Conv2dOptions(4, 6, 3).stride(2)), image);
    one("Conv3d", nn::Conv3d(nn::Conv3dOptions(4, 6, 2).groups(2)), volume);
    one("ConvTranspose1d", nn::ConvTranspose1d(4, 6, 3), line);
    one("ConvTranspose2d", nn::ConvTranspose2d(4, 6, 3), image);
    one("ConvTranspose3d", nn::ConvTranspose3d(4, 6, 2), volume);
    one("Fold", nn::Fold(nn::FoldOptions({4, 4}, 2)), x({5, 16, 9}));
    one("Unfold", nn::Unfold(nn::UnfoldOptions(2)), image);
    one("AdaptiveAvgPool1d", nn::AdaptiveAvgPool1d(2), line);
    one("AdaptiveAvgPool2d", nn::AdaptiveAvgPool2d(2), image);
    one("AdaptiveAvgPool3d", nn::AdaptiveAvgPool3d(2), volume);
    one("AdaptiveMaxPool1d", nn::AdaptiveMaxPool1d(2), line);
    one("AdaptiveMaxPool2d", nn::AdaptiveMaxPool2d(2), image);
    one("AdaptiveMaxPool3d", nn::AdaptiveMaxPool3d(2), volume);
    one("AvgPool1d", nn::AvgPool1d(2), line);
    one("AvgPool2d", nn::AvgPool2d(2), image);
    one("AvgPool3d", nn::AvgPool3d(2), volume);
    one("LPPool1d",
        nn::LPPool1d(nn::LPPool1dOptions(2, 2)),
        positive({5, 4, 6}));
    one("LPPool2d",
        nn::LPPool2d(nn::LPPool2dOptions(2, 2)),
        positive({5, 4, 6, 6}));
    one("LPPool3d",
        nn::LPPool3d(nn::LPPool3dOptions(2, 2)),
        positive({5, 4, 4, 4, 4}));
    one("MaxPool1d", nn::MaxPool1d(2), line);
    one("MaxPool2d", nn::MaxPool2d(2), image);
    one("MaxPool3d", nn::MaxPool3d(2), volume);
    const auto places = [](int64_t side, int64_t step, at::IntArrayRef sizes) {
      int64_t count = 1;
      for (size_t d = 2; d < sizes.size(); ++d) {
        count *= side;
      }
      return (torch::arange(count) * step)
          .view(sizes.slice(2))
          .expand(sizes)
          .contiguous();
    };
    two("MaxUnpool1d",
        nn::MaxUnpool1d(2),
        x({5, 4, 3}),
        places(3, 2, {5, 4, 3}));
    two("MaxUnpool2d",
        nn::MaxUnpool2d(2),
        x({5, 4, 2, 2}),
        places(2, 3, {5, 4, 2, 2}));
    two("MaxUnpool3d",
        nn::MaxUnpool3d(2),
        x({5, 4, 2, 2, 2}),
        places(2, 7, {5, 4, 2, 2, 2}));
    one("ConstantPad1d", nn::ConstantPad1d(1, 0.5), line);
    one("ConstantPad2d", nn::ConstantPad2d(1, 0.5), image);
    one("ConstantPad3d", nn::ConstantPad3d(1, 0.5), volume);
    one("ReflectionPad1d", nn::ReflectionPad1d(1), line);
    one("ReflectionPad2d", nn::ReflectionPad2d(1), image);
    one("ReflectionPad3d", nn::ReflectionPad3d(1), volume);
    one("ReplicationPad1d", nn::ReplicationPad1d(1), line);
    one("ReplicationPad2d", nn::ReplicationPad2d(1), image);
    one("ReplicationPad3d", nn::ReplicationPad3d(1), volume);
    one("ZeroPad1d", nn::ZeroPad1d(1), line);
    one("ZeroPad2d", nn::ZeroPad2d(1), image);
    one("ZeroPad3d", nn::ZeroPad3d(1), volume);
    one("PixelShuffle", nn::PixelShuffle(2), image);
    one("PixelUnshuffle", nn::PixelUnshuffle(2), image);
    one("Upsample",
        nn::Upsample(nn::UpsampleOptions()
                         .scale_factor(std::vector<double>{2, 2})
                         .mode(torch::kBilinear)
                         .align_corners(false)),
        image);
  }

  void add_norms() {
    one("BatchNorm1d", nn::BatchNorm1d(4), x({5, 4, 6}));
    one("BatchNorm2d", nn::BatchNorm2d(4), x({5, 4, 3, 3}));
    one("BatchNorm3d", nn::BatchNorm3d(4), x({5, 4, 2, 2, 2}));
    one("GroupNorm", nn::GroupNorm(2, 4), x({5, 4, 3}));
    one("InstanceNorm1d",
        nn::InstanceNorm1d(nn::InstanceNorm1dOptions(4).affine(true)),
        x({5, 4, 6}));
    one("InstanceNorm2d",
        nn::InstanceNorm2d(
            nn::InstanceNorm2dOptions(4).track_running_stats(true)),
        x({5, 4, 3, 3}));
    one("InstanceNorm3d", nn::InstanceNorm3d(4), x({5, 4, 2, 2, 2}));
    one("LayerNorm", nn::LayerNorm(nn::LayerNormOptions({4})), x({5, 4}));
    one("LocalResponseNorm", nn::LocalResponseNorm(2), x({5, 4, 3}));
  }

  void add_sequences() {
    const auto steps = x({5, 3, 4});
    one("GRU", nn::GRU(nn::GRUOptions(4, 6).batch_first(true)), steps);
    one("LSTM", nn::LSTM(nn::LSTMOptions(4, 6).batch_first(true)), steps);
    one("RNN", nn::RNN(nn::RNNOptions(4, 6).batch_first(true)), steps);
    one("GRUCell", nn::GRUCell(4, 6), x({5, 4}));
    one("LSTMCell", nn::LSTMCell(4, 6), x({5, 4}));
    one("RNNCell", nn::RNNCell(4, 6), x({5, 4}));
    // Time first: these modules have no other order.
    const auto here = x({4, 4, 8});
    const auto there = x({4, 4, 8});
    three(
        "MultiheadAttention", nn::MultiheadAttention(8, 4), here, there, there);
    const auto encoder =
        nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0);
    const auto decoder =
        nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(16).dropout(0);
    one("TransformerEncoderLayer", nn::TransformerEncoderLayer(encoder), here);
    one("TransformerEncoder",
        nn::TransformerEncoder(nn::TransformerEncoderOptions(encoder, 1)),
        here);
    two("TransformerDecoderLayer",
        nn::TransformerDecoderLayer(decoder),
        here,
        there);
    two("TransformerDecoder",
        nn::TransformerDecoder(nn::TransformerDecoderOptions(decoder, 1)),
        here,
        there);
    two("Transformer",
        nn::Transformer(
            nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(16).dropout(0)),
        here,
        there);
  }

  void add_losses() {
    const auto a = x({5, 4});
    const auto b = x({5, 4});
    const auto p = torch::rand({5, 4}, at::kDouble);
    two("BCELoss", nn::BCELoss(), p, torch::rand({5, 4}, at::kDouble));
    two("BCEWithLogitsLoss", nn::BCEWithLogitsLoss(), a, p);
    three("CosineEmbeddingLoss", nn::CosineEmbeddingLoss(), a, b, signs({5}));
    two("CrossEntropyLoss", weighted_cross_entropy(), a, classes(4, {5}));
    // Its clones share its weights.
    rows_.at("CrossEntropyLoss").make = [] {
      return weighted_cross_entropy().ptr();
    };
    two("HingeEmbeddingLoss", nn::HingeEmbeddingLoss(), a, signs({5, 4}));
    two("HuberLoss", nn::HuberLoss(), a, b);
    two("KLDivLoss",
        nn::KLDivLoss(nn::KLDivLossOptions().reduction(torch::kBatchMean)),
        a,
        positive({5, 4}));
    two("L1Loss", nn::L1Loss(), a, b);
    two("MSELoss", nn::MSELoss(), a, b);
    three(
        "MarginRankingLoss",
        nn::MarginRankingLoss(),
        x({5}),
        x({5}),
        signs({5}));
    two("MultiLabelMarginLoss",
        nn::MultiLabelMarginLoss(),
        a,
        classes(4, {5, 4}));
    two("MultiLabelSoftMarginLoss",
        nn::MultiLabelSoftMarginLoss(),
        a,
        classes(2, {5, 4}));
    two("MultiMarginLoss", nn::MultiMarginLoss(), a, classes(4, {5}));
    two("NLLLoss", nn::NLLLoss(), a, classes(4, {5}));
    two("PoissonNLLLoss", nn::PoissonNLLLoss(), a, positive({5, 4}));
    two("SmoothL1Loss", nn::SmoothL1Loss(), a, b);
    two("SoftMarginLoss", nn::SoftMarginLoss(), a, signs({5, 4}));
    three("TripletMarginLoss", nn::TripletMarginLoss(), a, b, x({5, 4}));
    three(
        "TripletMarginWithDistanceLoss",
        nn::TripletMarginWithDistanceLoss(),
        a,
        b,
        x({5, 4}));
  }

  std::map<std::string, Row> rows_;
};

// Modules without a row, for the reader and for the test of the names.
// AdaptiveLogSoftmaxWithLoss: its loss is a number, read off the tensor.
// CTCLoss: takes lengths as plain tensors; tried in Python.
// CrossMapLRN2d: a Function that reads memory.
// FractionalMaxPool2d, FractionalMaxPool3d: draw plain numbers by themselves.
// ModuleDict, ModuleList, ParameterDict, ParameterList: have no forward.

struct Outcome {
  Tensors results;
  Tensors gradients;
  Tensors buffers;
};

at::Tensor whole(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_dtensor(tensor)) {
    return tensor;
  }
  return DTensor(tensor.detach()).full_tensor();
}

Outcome run(const Row& row, nn::Module& module, const Tensors& inputs) {
  Outcome outcome;
  Tensors given;
  for (const auto& input : inputs) {
    const bool wants = input.is_floating_point();
    given.push_back(input.detach().requires_grad_(wants));
  }
  outcome.results = row.call(module, given);
  at::Tensor total;
  for (const auto& result : outcome.results) {
    if (result.requires_grad()) {
      const auto term = result.sin().sum();
      total = total.defined() ? total + term : term;
    }
  }
  if (total.defined()) {
    total.backward();
  }
  for (const auto& input : given) {
    outcome.gradients.push_back(input.grad());
  }
  for (const auto& parameter : module.parameters()) {
    outcome.gradients.push_back(parameter.grad());
  }
  outcome.buffers = module.buffers();
  return outcome;
}

void expect_equal(
    const Tensors& actual, const Tensors& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << what << " " << i;
    if (actual[i].defined()) {
      EXPECT_TRUE(at::allclose(
          whole(actual[i]), expected[i], 1e-9, 1e-9, /*equal_nan=*/true))
          << what << " " << i;
    }
  }
}

Placements placed(const at::Tensor& tensor, int64_t dim) {
  return dim >= 0 && dim < tensor.dim() ? Placements{Shard(dim)}
                                        : Placements{Replicate()};
}

void check(const Row& row, const DeviceMesh& mesh, int64_t dim, bool batch) {
  for (const bool training : {true, false}) {
    const auto plain = row.another();
    plain->train(training);
    const auto expected = run(row, *plain, row.inputs);
    const auto ours = row.another();
    ours->train(training);
    for (auto& parameter : ours->parameters()) {
      distribute_(parameter, mesh, placed(parameter, dim));
    }
    for (auto& buffer : ours->buffers()) {
      distribute_(buffer, mesh, {Replicate()});
    }
    Tensors inputs;
    for (const auto& input : row.inputs) {
      inputs.push_back(
          distribute_tensor(input, mesh, placed(input, batch ? 0 : -1)));
    }
    const auto actual = run(row, *ours, inputs);
    if (row.random && training) {
      // Which numbers are drawn differs; their shape does not.
      EXPECT_EQ(actual.results[0].sizes(), expected.results[0].sizes());
      continue;
    }
    expect_equal(actual.results, expected.results, "result");
    expect_equal(actual.gradients, expected.gradients, "gradient");
    expect_equal(actual.buffers, expected.buffers, "buffer");
  }
}

TEST(ModuleTable, EqualsOneDevice) {
  const Table table;
  testing::with_mesh({4}, [&](const DeviceMesh& mesh) {
    for (const auto& [name, row] : table.rows()) {
      int64_t dims = 0;
      for (const auto& parameter : row.module->parameters()) {
        dims = std::max(dims, parameter.dim());
      }
      for (int64_t dim = -1; dim < dims; ++dim) {
        for (const bool batch : {false, true}) {
          // Over processes all of it communicates, and the simulated world has
          // tried the rest.
          if (testing::over_processes() && (!batch || dim > 0)) {
            continue;
          }
          SCOPED_TRACE(
              name + ", parameters on " + std::to_string(dim) +
              (batch ? ", batch sharded" : ""));
          try {
            check(row, mesh, dim, batch);
          } catch (const c10::Error& error) {
            ADD_FAILURE() << error.what_without_backtrace();
          }
        }
      }
    }
  });
}

}  // namespace module_table_test
}  // namespace tessera
