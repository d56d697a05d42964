// weight[77777], a small slice, index_select and indexing with a few ids of a
// row-wise sharded table used to gather the whole table. Only the rows asked
// for move, and the gradient is sharded as the table is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tessera/debug.h"
#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace few_rows_test {

using ::testing::HasSubstr;
using Take = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

struct Case {
  std::string name;
  int64_t elements;  // of the sharded dimension that are asked for
  Take take;         // of the table; the second tensor are the ids 11, 3, 3
};

// For a table that is sharded by `dim`.
std::vector<Case> cases(int64_t dim) {
  using T = const at::Tensor&;
  const auto index = [dim](T w, T ids) {
    c10::List<std::optional<at::Tensor>> indices;
    for (int64_t d = 0; d < dim; ++d) {
      indices.push_back(std::optional<at::Tensor>());
    }
    indices.push_back(ids);
    return at::index(w, indices);
  };
  return {
      {"select", 1, [=](T w, T) { return w.select(dim, 7); }},
      {"the last", 1, [=](T w, T) { return w.select(dim, -1); }},
      {"a slice", 3, [=](T w, T) { return w.slice(dim, 4, 7); }},
      {"with a step", 3, [=](T w, T) { return w.slice(dim, 1, 10, 4); }},
      {"the end", 2, [=](T w, T) { return w.slice(dim, -2); }},
      {"two slices",
       4,
       [=](T w, T) { return w.slice(dim, 1, 5).slice(dim, 2, 3); }},
      {"index_select", 3, [=](T w, T i) { return w.index_select(dim, i); }},
      {"ids", 3, [=](T w, T i) { return index(w, i); }},
      {"negative ids", 3, [=](T w, T i) { return index(w, i - 13); }},
      {"ids of two dimensions",
       3,
       [=](T w, T i) { return index(w, i.view({3, 1})); }},
      {"no ids", 0, [=](T w, T i) { return index(w, i.slice(0, 0, 0)); }},
  };
}

at::Tensor table(at::IntArrayRef sizes) {
  return torch::arange(c10::multiply_integers(sizes), torch::kDouble)
             .view(sizes) -
         20;
}

constexpr int64_t kAgreement = 16;

at::Tensor ids() { return torch::tensor({11, 3, 3}, torch::kLong); }

ts::Placements replicated(const ts::DeviceMesh& mesh) {
  return ts::Placements(mesh.ndim(), ts::Replicate());
}

void expect_equal(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.sizes(), expected.sizes());
  const auto whole = ts::DTensor(got).full_tensor();
  if (!ts::DTensor(got).mesh().local_positions().empty()) {
    EXPECT_TRUE(whole.equal(expected)) << whole << "\nnot\n" << expected;
  }
}

void check(
    const ts::DeviceMesh& mesh,
    const ts::Placements& placements,
    at::IntArrayRef sizes,
    int64_t dim) {
  const int64_t element = c10::multiply_integers(sizes) / sizes[dim] * 8;
  for (const auto& c : cases(dim)) {
    SCOPED_TRACE(c.name + " on " + ts::to_string(placements));
    auto plain = table(sizes).requires_grad_();
    const auto expected = c.take(plain, ids());
    const auto grad = table(expected.sizes());
    expected.backward(grad);

    at::Tensor weight = ts::distribute_tensor(table(sizes), mesh, placements);
    weight.set_requires_grad(true);
    const at::Tensor index =
        ts::distribute_tensor(ids(), mesh, replicated(mesh));
    at::Tensor taken;
    {
      const ts::CommDebugMode comm;
      taken = c.take(weight, index);
      // A rank hands over each element once for each mesh dimension, to be
      // added up, and agrees that the ids are good. The world's ranks are
      // counted if it is simulated.
      EXPECT_LE(
          comm.get_total_bytes(),
          mesh.size() * (c.elements * element + kAgreement) * mesh.ndim())
          << comm;
      EXPECT_EQ(comm.get_comm_counts().count("all_gather"), 0) << comm;
    }
    expect_equal(taken, expected.detach());
    const at::Tensor grads =
        ts::distribute_tensor(grad, mesh, replicated(mesh));
    const ts::CommDebugMode comm;
    taken.backward(grads);
    EXPECT_EQ(comm.get_total_bytes(), 0) << comm;
    const auto got = weight.grad();
    EXPECT_EQ(ts::Placements(ts::DTensor(got).placements()), placements);
    expect_equal(got, plain.grad());
  }
}

TEST(FewRows, OnlyTheRowsAskedForMove) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (mesh.ndim() == 1) {
      check(mesh, {ts::Shard(0)}, {13, 5}, 0);
      check(mesh, {ts::Shard(1)}, {5, 13}, 1);
      check(mesh, {ts::Shard(1)}, {2, 13, 3}, 1);
      check(mesh, {ts::Shard(0)}, {13}, 0);
    } else if (mesh.ndim() == 2) {
      check(mesh, {ts::Shard(0), ts::Shard(0)}, {13, 5}, 0);
      check(mesh, {ts::Shard(0), ts::Shard(1)}, {13, 5}, 0);
      check(mesh, {ts::Replicate(), ts::Shard(0)}, {13, 5}, 0);
      check(mesh, {ts::Shard(2), ts::Shard(0)}, {13, 2, 3}, 0);
    }
  });
}

void on_four_ranks(const std::function<void(const ts::DeviceMesh&)>& body) {
  EXPECT_TRUE(ts::testing::with_mesh({4}, body));
}

at::Tensor row_wise(const at::Tensor& value, const ts::DeviceMesh& mesh) {
  return ts::distribute_tensor(value, mesh, {ts::Shard(0)});
}

// What is added up must not change what is there.
TEST(FewRows, EveryValueAndDtypeArrivesAsItIs) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    auto odd = torch::zeros({12, 4}, torch::kFloat);
    odd[5] = torch::tensor({-0.0F, std::nanf(""), INFINITY, -INFINITY});
    const auto row = ts::DTensor(row_wise(odd, mesh)[5]).full_tensor();
    EXPECT_TRUE(std::signbit(row[0].item<float>()));
    EXPECT_TRUE(std::isnan(row[1].item<float>()));
    EXPECT_TRUE(row.slice(0, 2).equal(odd[5].slice(0, 2)));
    for (const auto dtype :
         {torch::kBool,
          torch::kChar,
          torch::kLong,
          torch::kHalf,
          torch::kBFloat16,
          torch::kComplexFloat}) {
      SCOPED_TRACE(c10::toString(dtype));
      const auto value =
          torch::arange(48, torch::kInt).remainder(3).view({12, 4}).to(dtype);
      const auto weight = row_wise(value, mesh);
      const auto few = row_wise(torch::tensor({10, 2, 0, 1}), mesh);
      expect_equal(weight[5], value[5]);
      expect_equal(weight.slice(0, 2, 5), value.slice(0, 2, 5));
      expect_equal(
          weight.index({few}), value.index({torch::tensor({10, 2, 0, 1})}));
    }
  });
}

TEST(FewRows, PendingSumsAndOtherStridesGoOn) {
  EXPECT_TRUE(ts::testing::with_mesh({2, 2}, [](const ts::DeviceMesh& mesh) {
    const auto value = table({13, 5});
    // A product leaves its sum pending on the second mesh dimension.
    const at::Tensor left =
        ts::distribute_tensor(value, mesh, {ts::Shard(0), ts::Shard(1)});
    const at::Tensor right = ts::distribute_tensor(
        torch::eye(5, torch::kDouble), mesh, {ts::Replicate(), ts::Shard(0)});
    const auto pending = left.mm(right);
    ASSERT_TRUE(ts::DTensor(pending).placements()[1].is_partial());
    expect_equal(pending[7], value[7]);
    const at::Tensor wide = ts::distribute_tensor(
        table({5, 13}), mesh, {ts::Shard(1), ts::Replicate()});
    const auto turned = wide.t();
    const auto plain = table({5, 13}).t();
    expect_equal(turned[7], plain[7]);
    EXPECT_EQ(turned.slice(0, 3, 5).strides(), plain.slice(0, 3, 5).strides());
    EXPECT_EQ(
        turned.slice(0, 3, 5).is_contiguous(),
        plain.slice(0, 3, 5).is_contiguous());
  }));
}

TEST(FewRows, SelectedRowsAreViews) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    auto weight = row_wise(table({13, 5}), mesh);
    auto row = weight[7];
    row.add_(1);
    expect_equal(row, table({13, 5})[7] + 1);
    expect_equal(weight[7], table({13, 5})[7] + 1);
    weight.add_(1);
    expect_equal(row, table({13, 5})[7] + 2);
    // What is no view in torch stays what it was.
    const auto copy = weight.index({row_wise(torch::tensor({2, 3}), mesh)});
    weight.add_(1);
    expect_equal(copy, table({13, 5}).slice(0, 2, 4) + 1);
  });
}

TEST(FewRows, InInferenceMode) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const auto outside = row_wise(table({13, 5}), mesh).requires_grad_();
    const c10::InferenceMode mode;
    const auto few = row_wise(torch::tensor({2, 3}), mesh);
    for (const auto& weight : {outside, row_wise(table({13, 5}), mesh)}) {
      expect_equal(weight[7], table({13, 5})[7]);
      expect_equal(weight.slice(0, 2, 4), table({13, 5}).slice(0, 2, 4));
      expect_equal(weight.index({few}), table({13, 5}).slice(0, 2, 4));
      EXPECT_EQ(weight[7].is_inference(), weight.is_inference());
    }
  });
}

TEST(FewRows, GradientsOfGradients) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const auto penalty = [](const at::Tensor& weight) {
      const auto loss =
          weight[7].pow(3).sum() + weight.slice(0, 2, 5).pow(3).sum();
      const auto grad = torch::autograd::grad(
          {loss}, {weight}, /*grad_outputs=*/{}, std::nullopt, true)[0];
      return torch::autograd::grad({grad.pow(2).sum()}, {weight})[0];
    };
    const auto expected = penalty(table({13, 5}).requires_grad_());
    expect_equal(
        penalty(row_wise(table({13, 5}), mesh).requires_grad_()), expected);
  });
}

TEST(FewRows, AnIdOutsideIsRefused) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const auto weight = row_wise(table({13, 5}), mesh);
    const at::Tensor bad = ts::distribute_tensor(
        torch::tensor({1, 13}, torch::kLong), mesh, {ts::Replicate()});
    EXPECT_THROW(weight[13], c10::IndexError);
    EXPECT_THROW(weight[-14], c10::IndexError);
    EXPECT_THROW(weight.index_select(0, bad), c10::IndexError);
    EXPECT_THROW(weight.index({bad}), c10::IndexError);
    EXPECT_THROW(weight.index({bad - 15}), c10::IndexError);
    EXPECT_THROW(weight.index({torch::tensor({1, 2})}), c10::Error);
  });
}

TEST(FewRows, ExplicitCommunicationForbidsIt) {
  on_four_ranks([](const ts::DeviceMesh& mesh) {
    const auto weight = row_wise(table({13, 5}), mesh);
    const ts::ExplicitCommunication scope;
    try {
      weight[7].clone();
      FAIL() << "expected an error";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("aten::select"));
      EXPECT_THAT(error.what(), HasSubstr("all_reduce"));
    }
  });
}

}  // namespace few_rows_test
