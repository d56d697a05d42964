// A view that had to be copied into another layout shows its base's values,
// whoever writes them and reads it. Readers that did not ask (nonzero and
// masks, fused optimizers, renorm, printing) and tensors that count no writes
// (those of inference mode) used to give the old ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>
#include <string>

#include "tessera/tessera.h"
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

struct Read {
  const char* name;
  std::function<at::Tensor(const at::Tensor&)> read;
};

struct Write {
  const char* name;
  std::function<void(const at::Tensor&)> write;
};

at::Tensor whole(const at::Tensor& tensor) {
  return ts::is_dtensor(tensor) ? ts::DTensor(tensor).full_tensor() : tensor;
}

// What is read of a view, distributed or plain.
const std::vector<Read>& reads() {
  using T = const at::Tensor&;
  static const std::vector<Read> all = {
      {"an op", [](T v) { return v + 0; }},
      {"a view", [](T v) { return v.t(); }},
      {"detach, then an op", [](T v) { return v.detach() + 0; }},
      {"nonzero", [](T v) { return v.nonzero(); }},
      {"mask", [](T v) { return v.index({v.detach() > 4}); }},
      {"full_tensor", [](T v) { return whole(v); }},
      {"shards",
       [](T v) -> at::Tensor {
         if (ts::is_dtensor(v)) {
           for (const auto& shard : ts::DTensor(v).shards()) {
             (void)shard;
           }
         }
         return v + 0;
       }},
      {"redistribute",
       [](T v) -> at::Tensor {
         return ts::is_dtensor(v) ? ts::DTensor(v).redistribute({ts::Shard(0)})
                                  : v;
       }},
      {"a list", [](T v) { return at::cat({v, v}); }},
  };
  return all;
}

void check_reads(const ts::DeviceMesh& mesh) {
  const bool outside = mesh.local_positions().empty();
  for (const auto& [name, read] : reads()) {
    SCOPED_TRACE(name);
    const auto plain = rows();
    const auto base = cut(plain, mesh);
    const auto view = base.slice(0, 0, 2);
    for (const char* when : {"made", "its base written", "written itself"}) {
      SCOPED_TRACE(when);
      const auto expected = read(plain.slice(0, 0, 2));
      const auto given = whole(read(view));
      EXPECT_TRUE(outside || given.equal(whole(expected)));
      base.add_(1);
      plain.add_(1);
      if (std::string_view(when) == "its base written") {
        view.mul_(2);
        plain.slice(0, 0, 2).mul_(2);
      }
    }
    EXPECT_TRUE(outside || whole(base).equal(plain));
  }
}

TEST(CopiedViews, ShowWhatTheirBaseHolds) { on_four_ranks(check_reads); }

// Printing sends nothing where other ranks may not print, and never shows old
// values.
TEST(CopiedViews, ArePrinted) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const auto base = cut(rows(), mesh);
    const ts::DTensor view(base.slice(0, 0, 2));
    const auto text = [&] {
      std::ostringstream out;
      out << view;
      return out.str();
    };
    const bool all_here = mesh.local_positions().size() > 1;
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(view.reading_sends());
      EXPECT_EQ(text().find("rank 0:") != std::string::npos, all_here);
      EXPECT_EQ(
          text().find("when every rank reads it") == std::string::npos,
          all_here);
      view.full_tensor();
      EXPECT_FALSE(view.reading_sends());
      EXPECT_THAT(text(), HasSubstr("rank "));
      base.add_(1);
    }
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
    EXPECT_TRUE(whole(view).equal(rows().slice(0, 0, 2) + 1));
    view.add_(1);
    EXPECT_TRUE(whole(base).slice(0, 0, 2).equal(rows().slice(0, 0, 2) + 2));
  });
}

// Writes by any of the tensors that share memory count.
TEST(CopiedViews, WritesThroughAnAlias) {
  const std::vector<Write> writes = {
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
      SCOPED_TRACE(name);
      const auto base = cut(rows(), mesh);
      const auto view = base.slice(0, 0, 2);
      whole(view);
      write(base);
      EXPECT_TRUE(whole(view).equal(whole(base).slice(0, 0, 2)));
      EXPECT_FALSE(whole(base).equal(rows()));
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
    EXPECT_TRUE(torch::allclose(
        step(view), (rows().to(at::kFloat).slice(0, 0, 2) + 1) * -0.1));
    // A parameter that is such a view.
    const auto parameter = base.slice(0, 2, 4);
    const auto grad =
        ts::ones({2, 3}, mesh, ts::DTensor(parameter).placements())
            .to(at::kFloat);
    at::_fused_sgd_(
        {parameter}, {grad}, {}, 0, 0, 0.5, 0, false, false, false, {}, {});
    EXPECT_TRUE(torch::allclose(
        whole(base).slice(0, 2, 4),
        rows().to(at::kFloat).slice(0, 2, 4) + 0.5));
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
    base.add_(3);
    const auto table = renorm(view);
    EXPECT_TRUE(table.slice(0, 0, 3).equal(torch::ones({3, 3})));
    EXPECT_FALSE(table.slice(0, 3, 5).eq(1).any().item<bool>());
  });
}

// Lookups and bags read tables and indices.
TEST(CopiedViews, Lookups) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const auto table = cut(rows(), mesh);
    const auto ids = cut(torch::arange(8), mesh);
    const auto some = ids.slice(0, 0, 4);
    const auto part = table.slice(0, 0, 4);
    const auto first = ts::distribute_tensor(torch::arange(4), mesh);
    const auto bags = ts::distribute_tensor(torch::arange(2) * 2, mesh);
    const auto bag = [&](const at::Tensor& w, const at::Tensor& i) {
      return std::get<0>(torch::embedding_bag(w, i, bags));
    };
    const auto check = [&](const at::Tensor& plain, const at::Tensor& at) {
      using ::copied_views_test::whole;
      const auto four = torch::arange(4);
      const auto two = torch::arange(2) * 2;
      EXPECT_TRUE(
          whole(at::embedding(table, some)).equal(at::embedding(plain, at)));
      EXPECT_TRUE(
          whole(at::embedding(part, first)).equal(at::embedding(plain, four)));
      EXPECT_TRUE(
          whole(bag(table, some))
              .equal(std::get<0>(torch::embedding_bag(plain, at, two))));
      EXPECT_TRUE(
          whole(bag(part, first))
              .equal(std::get<0>(torch::embedding_bag(plain, four, two))));
    };
    check(rows(), torch::arange(4));
    table.add_(1);
    ids.mul_(0);
    check(rows() + 1, torch::zeros({4}, torch::kLong));
  });
}

}  // namespace copied_views_test
