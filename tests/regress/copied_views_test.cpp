// A view that had to be copied into another layout is out of date once its base
// is written. Readers that did not ask (nonzero and masks, fused optimizers,
// renorm, printing) and tensors that count no writes (those of inference mode)
// used to give the old values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>
#include <string>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace copied_views_test {

using ::testing::HasSubstr;

at::Tensor rows() { return torch::arange(24, torch::kDouble).view({8, 3}); }

ts::DTensor cut(const at::Tensor& value, const ts::DeviceMesh& mesh) {
  return ts::distribute_tensor(value, mesh, {ts::Shard(0)});
}

void on_four_ranks(const std::function<void(const ts::DeviceMesh&)>& body) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, body));
}

// Fails unless the read is refused: what it reads is out of date.
void expect_refused(
    const std::string& name, const std::function<void()>& read) {
  SCOPED_TRACE(name);
  EXPECT_THAT(ts::testing::error_of(read), HasSubstr("out of date"));
}

struct Read {
  const char* name;
  std::function<void(const at::Tensor&)> read;
};

const std::vector<Read>& reads() {
  using T = const at::Tensor&;
  static const std::vector<Read> all = {
      {"an op", [](T v) { v + 0; }},
      {"a view", [](T v) { v.t(); }},
      {"detach, then an op", [](T v) { v.detach() + 0; }},
      {"nonzero", [](T v) { v.nonzero(); }},
      {"mask", [](T v) { v.index({v.detach() > 0}); }},
      {"shards", [](T v) { ts::DTensor(v).shards(); }},
      {"full_tensor", [](T v) { ts::DTensor(v).full_tensor(); }},
      {"redistribute",
       [](T v) { ts::DTensor(v).redistribute({ts::Shard(0)}); }},
      {"a list", [](T v) { at::cat({v, v}); }},
  };
  return all;
}

void check_reads(const ts::DeviceMesh& mesh) {
  for (const auto& [name, read] : reads()) {
    const auto base = cut(rows(), mesh);
    const auto view = base.slice(0, 0, 2);
    read(view);
    base.add_(1);
    expect_refused(name, [&] { read(view); });
  }
  const auto mask = cut(rows().gt(5), mesh);
  const auto view = mask.slice(0, 0, 2);
  mask.logical_not_();
  expect_refused("as a mask", [&] { ts::zeros({2, 3}, mesh).index({view}); });
}

TEST(CopiedViews, AreReadByNobodyOnceTheirBaseWasWritten) {
  on_four_ranks(check_reads);
}

// Printing never raises, and never shows old values.
TEST(CopiedViews, ArePrintedWithoutValues) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const auto base = cut(rows(), mesh);
    const ts::DTensor view(base.slice(0, 0, 2));
    const auto text = [&] {
      std::ostringstream out;
      out << view;
      return out.str();
    };
    EXPECT_THAT(text(), HasSubstr("rank "));
    base.add_(1);
    EXPECT_THAT(text(), HasSubstr("out of date"));
    EXPECT_THAT(text(), ::testing::Not(HasSubstr("rank 0:")));
  });
}

TEST(CopiedViews, WithoutGradients) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    check_reads(mesh);
  });
}

TEST(CopiedViews, InInferenceMode) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const c10::InferenceMode inference;
    check_reads(mesh);
  });
}

// The base was made outside, and counts its writes.
TEST(CopiedViews, InInferenceModeOfATensorMadeOutside) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const auto base = cut(rows(), mesh);
    const c10::InferenceMode inference;
    const auto view = base.slice(0, 0, 2);
    EXPECT_FALSE(view.is_inference());
    EXPECT_TRUE(ts::DTensor(view).full_tensor().equal(rows().slice(0, 0, 2)));
    base.add_(1);
    expect_refused("an op", [&] { view + 0; });
  });
}

// Writes by any of the tensors that share memory count.
TEST(CopiedViews, WritesThroughAnAlias) {
  const std::vector<Read> writes = {
      {"a view", [](const at::Tensor& x) { x.t().mul_(2); }},
      {"a view of a view",
       [](const at::Tensor& x) { x.t().slice(0, 0, 1).mul_(2); }},
      {"detach", [](const at::Tensor& x) { x.detach().mul_(2); }},
      {"out=",
       [](const at::Tensor& x) {
         at::Tensor out = x;
         at::add_out(out, x, x);
       }},
      {"random numbers", [](const at::Tensor& x) { x.detach().uniform_(); }},
      {"a masked write",
       [](const at::Tensor& x) { x.detach().index_put_({x.gt(1)}, x.max()); }},
      {"a shard that was handed out",
       [](const at::Tensor& x) {
         const auto shards = ts::DTensor(x.detach()).shards();
         if (!shards.empty()) shards[0].mul_(2);
       }},
  };
  const auto check = [&](const ts::DeviceMesh& mesh, bool counts) {
    for (const auto& [name, write] : writes) {
      // Nobody counts the writes into a plain tensor of inference mode.
      if (!counts && std::string(name) == "a shard that was handed out") {
        continue;
      }
      const auto base = cut(rows(), mesh);
      const auto view = base.slice(0, 0, 2);
      write(base);
      expect_refused(name, [&] { view + 0; });
    }
  };
  on_four_ranks([&](const ts::DeviceMesh& mesh) {
    check(mesh, true);
    const c10::InferenceMode inference;
    check(mesh, false);
  });
}

// A step reads gradients and state: none of them may be out of date.
TEST(CopiedViews, FusedOptimizers) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const auto step = [&](const at::Tensor& grad) {
      // As it lies: the step need not redistribute it.
      const auto parameter =
          ts::zeros({2, 3}, mesh, ts::DTensor(grad).placements());
      at::_fused_sgd_(
          {parameter},
          {grad.detach()},
          {},
          /*weight_decay=*/0,
          /*momentum=*/0,
          /*lr=*/0.1,
          /*dampening=*/0,
          /*nesterov=*/false,
          /*maximize=*/false,
          /*is_first_step=*/false,
          {},
          {});
      return ts::DTensor(parameter).full_tensor();
    };
    const auto base = cut(rows().to(at::kFloat), mesh);
    const auto view = base.slice(0, 0, 2);
    EXPECT_TRUE(torch::allclose(
        step(view), rows().to(at::kFloat).slice(0, 0, 2) * -0.1));
    base.add_(1);
    expect_refused("_fused_sgd_", [&] { step(view); });
  });
}

TEST(CopiedViews, Renorm) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    ts::EmbeddingOptions options;
    options.max_norm = true;
    const ts::EmbeddingScope scope(options);
    const auto renorm = [&](const at::Tensor& indices) {
      auto table = ts::ones({8, 3}, mesh, {ts::Shard(0)});
      at::embedding_renorm_(table, indices, 1.0, 2.0);
      return ts::DTensor(table).full_tensor();
    };
    const auto base = cut(torch::arange(8), mesh);
    const auto view = base.slice(0, 0, 2);
    EXPECT_TRUE(renorm(view).slice(0, 2).equal(torch::ones({6, 3})));
    base.add_(1);
    expect_refused("embedding_renorm_", [&] { renorm(view); });
  });
}

// Lookups and bags read tables and indices.
TEST(CopiedViews, Lookups) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const auto table = cut(rows(), mesh);
    const auto ids = cut(torch::arange(8), mesh);
    const auto some = ids.slice(0, 0, 4);
    const auto part = table.slice(0, 0, 4);
    const auto whole = ts::distribute_tensor(torch::arange(4), mesh);
    const auto bags = ts::distribute_tensor(torch::arange(2) * 2, mesh);
    const auto bag = [&](const at::Tensor& w, const at::Tensor& i) {
      torch::embedding_bag(w, i, bags);
    };
    at::embedding(table, some);
    at::embedding(part, whole);
    bag(table, some);
    bag(part, whole);
    table.add_(1);
    ids.mul_(0);
    expect_refused("embedding", [&] { at::embedding(table, some); });
    expect_refused("of a table", [&] { at::embedding(part, whole); });
    expect_refused("embedding_bag", [&] { bag(table, some); });
    expect_refused("of a table, bag", [&] { bag(part, whole); });
  });
}

}  // namespace copied_views_test
