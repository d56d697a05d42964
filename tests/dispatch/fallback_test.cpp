// Ops without a rule run on gathered inputs, and are as right as on one device.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <cstdlib>

#include "tessera/debug.h"
#include "tessera/scopes.h"
#include "tests/dispatch/full_value.h"

namespace tessera {
namespace fallback_test {

using tessera::testing::error_of;
using tessera::testing::expect_value;
using tessera::testing::laid_out;
using tessera::testing::on_four_ranks;
using tessera::testing::placements_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor value() { return at::arange(30, at::kDouble).view({5, 6}) - 11; }

// Ops of our own, which no later rule will serve: what the fallback does is not
// a question of which op it is.
at::Tensor said_once(const at::Tensor& x) { return x.clone(); }
at::Tensor flipped(const at::Tensor& x) { return x.flip({0, 1}).contiguous(); }
std::tuple<at::Tensor, std::vector<at::Tensor>, int64_t> three_kinds(
    const at::Tensor& x) {
  return {x.sum(0), {x[0].clone(), x[1].clone()}, x.size(0)};
}
at::Tensor above(const at::Tensor& x, double bound) {
  return x.masked_select(x > bound);
}
at::Tensor& reverse_(at::Tensor& x) { return x.copy_(x.flip({0})); }
at::Tensor& reversed_out(const at::Tensor& x, at::Tensor& out) {
  out.resize_(x.sizes());
  return out.copy_(x.flip({0}));
}
at::Tensor& shrink_(at::Tensor& x) {
  x.resize_({1, 2});
  return x;
}
at::Tensor first_row(const at::Tensor& x) { return x.select(0, 0); }
std::vector<at::Tensor> all_rows(const at::Tensor& x) { return x.unbind(0); }
at::Tensor noise(const at::Tensor& x, std::optional<at::Generator> generator) {
  return at::rand(x.sizes(), generator, x.options());
}
at::Tensor own_noise(const at::Tensor& x) {
  return at::rand(x.sizes(), x.options());
}
at::Tensor sparse(const at::Tensor& x) { return x.to_sparse(); }

TORCH_LIBRARY(tessera_unknown, library) {
  library.def("said_once(Tensor x) -> Tensor");
  library.def("flipped(Tensor x) -> Tensor");
  library.def("three_kinds(Tensor x) -> (Tensor, Tensor[], int)");
  library.def("above(Tensor x, float bound) -> Tensor");
  library.def("reverse_(Tensor(a!) x) -> Tensor(a!)");
  library.def("reversed.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("shrink_(Tensor(a!) x) -> Tensor(a!)");
  library.def("first_row(Tensor(a) x) -> Tensor(a)");
  library.def("all_rows(Tensor(a) x) -> Tensor(a)[]");
  library.def("sparse(Tensor x) -> Tensor");
  library.def(
      "noise(Tensor x, Generator? generator=None) -> Tensor",
      {at::Tag::nondeterministic_seeded});
  library.def(
      "own_noise(Tensor x) -> Tensor", {at::Tag::nondeterministic_seeded});
  library.impl("said_once", c10::DispatchKey::CPU, &said_once);
  library.impl("flipped", c10::DispatchKey::CPU, &flipped);
  library.impl("three_kinds", c10::DispatchKey::CPU, &three_kinds);
  library.impl("above", c10::DispatchKey::CPU, &above);
  library.impl("reverse_", c10::DispatchKey::CPU, &reverse_);
  library.impl("reversed.out", c10::DispatchKey::CPU, &reversed_out);
  library.impl("shrink_", c10::DispatchKey::CPU, &shrink_);
  library.impl("first_row", c10::DispatchKey::CPU, &first_row);
  library.impl("all_rows", c10::DispatchKey::CPU, &all_rows);
  library.impl("sparse", c10::DispatchKey::CPU, &sparse);
  library.impl("noise", c10::DispatchKey::CPU, &noise);
  library.impl("own_noise", c10::DispatchKey::CPU, &own_noise);
}

template <typename... Args>
torch::jit::Stack call(const std::string& op, Args... args) {
  torch::jit::Stack stack;
  torch::jit::push(stack, args...);
  const auto dot = op.find('.');
  c10::Dispatcher::singleton()
      .findSchemaOrThrow(
          ("tessera_unknown::" + op.substr(0, dot)).c_str(),
          dot == std::string::npos ? "" : op.substr(dot + 1).c_str())
      .callBoxed(&stack);
  return stack;
}

template <typename... Args>
at::Tensor call_one(const std::string& op, Args... args) {
  return call(op, args...)[0].toTensor();
}

const std::vector<Placement>& all_placements() {
  static const std::vector<Placement> all = {
      Replicate(), Shard(0), Shard(1), Partial()};
  return all;
}

TEST(Fallback, ResultsAreReplicatedAndRight) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const auto& placement : all_placements()) {
      SCOPED_TRACE(placement.str());
      const auto x = laid_out(value(), mesh, placement, 1);
      const auto y = call_one("flipped", x);
      expect_value(y, flipped(value()));
      EXPECT_EQ(placements_of(y), "[R]");
      // A size that depends on the values.
      expect_value(call_one("above", x, 3.0), above(value(), 3.0));
    }
  });
}

TEST(Fallback, SeveralResultsListsAndNumbers) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const auto& placement : all_placements()) {
      SCOPED_TRACE(placement.str());
      const auto results =
          call("three_kinds", laid_out(value(), mesh, placement, 1));
      expect_value(results[0].toTensor(), value().sum(0));
      const auto rows = results[1].toTensorVector();
      ASSERT_EQ(rows.size(), 2);
      expect_value(rows[1], value()[1]);
      EXPECT_EQ(results[2].toInt(), 5);
    }
  });
}

TEST(Fallback, WrittenTensorsKeepTheirLayout) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
      SCOPED_TRACE(placement.str());
      const auto x = laid_out(value(), mesh, placement, 1);
      EXPECT_TRUE(call_one("reverse_", x).is_same(x));
      expect_value(x, value().flip({0}));
      EXPECT_EQ(placements_of(x), to_string({placement}));
      for (const auto& from : all_placements()) {
        const auto out = laid_out(at::zeros_like(value()), mesh, placement, 1);
        EXPECT_TRUE(
            call_one("reversed.out", laid_out(value(), mesh, from, 1), out)
                .is_same(out));
        expect_value(out, value().flip({0}));
        EXPECT_EQ(placements_of(out), to_string({placement}));
      }
    }
  });
}

TEST(Fallback, WritesThroughAliasingViews) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    auto expected = value();
    call_one("reverse_", x.t());
    call_one("reverse_", expected.t());
    expect_value(x, expected);
  });
}

TEST(Fallback, NeverWritesWhatALayoutCannotHold) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto pending = laid_out(value(), mesh, Partial(), 1);
    EXPECT_THAT(
        error_of<c10::NotImplementedError>([&] { call("reverse_", pending); }),
        HasSubstr("cannot keep the layout [P(sum)]"));
    expect_value(pending, value());
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    const auto small = laid_out(at::ones({2, 6}), mesh, Shard(0), 1);
    EXPECT_THAT(
        error_of([&] { call("reversed.out", x, small); }),
        AllOf(HasSubstr("[5, 6]"), HasSubstr("[2, 6]")));
    expect_value(small, at::ones({2, 6}));
    EXPECT_THAT(
        error_of([&] { call("shrink_", x); }), HasSubstr("cannot be resized"));
    EXPECT_THAT(
        error_of<c10::NotImplementedError>([&] { call("sparse", x); }),
        HasSubstr("layout Sparse"));
  });
}

TEST(Fallback, ViewsAliasOrAreCopies) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto whole = laid_out(value(), mesh, Replicate(), 1);
    call_one("first_row", whole).zero_();
    auto expected = value();
    expected[0].zero_();
    expect_value(whole, expected);
    for (const auto& placement : {Shard(0), Shard(1), Partial()}) {
      SCOPED_TRACE(placement.str());
      const auto x = laid_out(value(), mesh, placement, 1);
      const auto row = call_one("first_row", x);
      expect_value(row, value()[0]);
      EXPECT_THAT(
          error_of([&] { row.zero_(); }),
          HasSubstr("copied into another layout"));
      const auto rows = call("all_rows", x)[0].toTensorVector();
      ASSERT_EQ(rows.size(), 5);
      expect_value(rows[3], value()[3]);
    }
  });
}

TEST(Fallback, RandomNumbersAreTheSameOnEveryRank) {
  on_four_ranks([](const DeviceMesh& mesh) {
    auto generator = at::globalContext().defaultGenerator(at::kCPU);
    for (const char* op : {"noise", "own_noise"}) {
      const auto x = laid_out(value(), mesh, Shard(0), 1);
      const auto draw = [&] {
        return std::string(op) == "noise" ? call_one(op, x, c10::IValue())
                                          : call_one(op, x);
      };
      const auto state = generator.get_state().clone();
      const DTensor y(draw());
      // A replica that differed would show in the sum of all of them.
      const DTensor sum(DTensor::from_local(y.shards(), mesh, {Partial()}));
      EXPECT_TRUE(at::allclose(sum.full_tensor(), y.full_tensor() * 4));
      EXPECT_FALSE(y.full_tensor().equal(DTensor(draw()).full_tensor()));
      // From the same state the process's generator gives the same numbers.
      generator.set_state(state);
      EXPECT_TRUE(y.full_tensor().equal(DTensor(draw()).full_tensor()));
    }
    const auto own = at::make_generator<at::CPUGeneratorImpl>(7);
    EXPECT_THAT(
        error_of<c10::NotImplementedError>(
            [&] { call("noise", laid_out(value(), mesh, Shard(0), 1), own); }),
        HasSubstr("generator of one's own"));
  });
}

TEST(Fallback, AsStridedIsAViewOrACopiedOne) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto windows = [](const at::Tensor& x) {
      return x.as_strided({4, 2, 6}, {6, 6, 1});
    };
    for (const auto& placement : all_placements()) {
      SCOPED_TRACE(placement.str());
      const auto x = laid_out(value(), mesh, placement, 1);
      expect_value(windows(x), windows(value()));
      // Columns first: the memory of the whole would be so, too.
      const auto turned = laid_out(value(), mesh, placement, 1).t();
      expect_value(
          turned.as_strided({3}, {7}, 2), value().t().as_strided({3}, {7}, 2));
      const auto view = windows(x);
      view[1].zero_();
      expect_value(x.select(0, 1), at::zeros({6}, at::kDouble));
      x.mul_(2);
      auto expected = value();
      expected.slice(0, 1, 3).zero_();
      expect_value(view, windows(expected.mul_(2)));
    }
    // Memory that is not the tensor's own.
    const auto whole = laid_out(value(), mesh, Replicate(), 1);
    expect_value(
        whole.slice(0, 1).as_strided({3}, {7}),
        value().slice(0, 1).as_strided({3}, {7}));
    EXPECT_THAT(
        error_of<c10::NotImplementedError>(
            [&] { whole.slice(0, 1).as_strided({3}, {7}, 0); }),
        HasSubstr("storage_offset"));
    const auto rows = laid_out(value(), mesh, Shard(0), 1);
    EXPECT_THAT(
        error_of<c10::NotImplementedError>(
            [&] { rows.slice(1, 0, 2).as_strided({3}, {7}); }),
        HasSubstr("contiguous()"));
  });
}

TEST(Fallback, AsStridedHasAGradient) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto loss = [](const at::Tensor& x) {
      return (x.as_strided({4, 2, 6}, {6, 6, 1}) * x.sum()).sum();
    };
    const auto leaf = value().requires_grad_();
    loss(leaf).backward();
    for (const auto& placement : all_placements()) {
      SCOPED_TRACE(placement.str());
      const auto x = laid_out(value(), mesh, placement, 1).detach();
      x.requires_grad_();
      loss(x).backward();
      expect_value(x.grad(), leaf.grad());
    }
  });
}

// Warnings that this thread gives.
class Warnings : public c10::WarningHandler {
 public:
  Warnings() : previous_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
  }
  ~Warnings() override { c10::WarningUtils::set_warning_handler(previous_); }
  void process(const c10::Warning& warning) override {
    texts.push_back(warning.msg());
  }
  std::vector<std::string> texts;

 private:
  c10::WarningHandler* previous_;
};

TEST(Fallback, WarnsOnceAnOp) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const Warnings warnings;
    // Nothing is gathered, nothing to be said.
    call("said_once", laid_out(value(), mesh, Replicate(), 1));
    EXPECT_TRUE(warnings.texts.empty());
    for (int i = 0; i < 2; ++i) {
      call("said_once", laid_out(value(), mesh, Shard(0), 1));
    }
    ASSERT_EQ(warnings.texts.size(), 1);
    EXPECT_THAT(
        warnings.texts[0],
        AllOf(
            HasSubstr("tessera_unknown.said_once.default"),
            HasSubstr("240 bytes"),
            HasSubstr("register_rule(\"tessera_unknown::said_once\""),
            HasSubstr("TESSERA_STRICT=1")));
  });
}

TEST(Fallback, StrictRefuses) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    {
      const Strict strict;
      const CommDebugMode comm;
      EXPECT_THAT(
          error_of<c10::NotImplementedError>([&] { call("flipped", x); }),
          AllOf(
              HasSubstr("Operator tessera_unknown.flipped.default does not "
                        "have a sharding strategy registered"),
              HasSubstr("full_tensor"),
              HasSubstr("register_rule")));
      EXPECT_EQ(comm.get_total_counts(), 0);
      const Strict nested;
    }
    expect_value(call_one("flipped", x), flipped(value()));
  });
}

TEST(Fallback, StorageAndRankLocalStateStayRefused) {
  on_four_ranks([](const DeviceMesh& mesh) {
    for (const auto& placement : {Replicate(), Shard(0)}) {
      const auto x = laid_out(value(), mesh, placement, 1);
      const auto refusal = HasSubstr("does not have a sharding strategy");
      EXPECT_THAT(
          error_of<c10::NotImplementedError>([&] { x.resize_({2, 2}); }),
          refusal);
      EXPECT_THAT(
          error_of<c10::NotImplementedError>([&] { x.set_(); }), refusal);
      EXPECT_THAT(
          error_of<c10::NotImplementedError>([&] { x.is_set_to(x); }), refusal);
      expect_value(x, value());
    }
  });
}

TEST(Fallback, CountsTheGatherForTheOp) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto x = laid_out(value(), mesh, Shard(0), 1);
    const CommDebugMode comm;
    call("flipped", x);
    ASSERT_EQ(comm.get_records().size(), 1);
    EXPECT_EQ(comm.get_records()[0].op, "tessera_unknown::flipped");
    EXPECT_EQ(comm.get_records()[0].collective, "all_gather");
  });
}

TEST(Fallback, ATenOpsWithGradients) {
  on_four_ranks([](const DeviceMesh& mesh) {
    const auto plain = (value() + at::eye(5, 6, at::kDouble) * 40);
    for (const auto& placement : all_placements()) {
      SCOPED_TRACE(placement.str());
      const auto leaf = plain.clone().requires_grad_();
      const auto [q, r] = at::linalg_qr(leaf);
      (q.sin().sum() + r.sum()).backward();
      const auto x = laid_out(plain, mesh, placement, 1).detach();
      x.requires_grad_();
      const auto [dq, dr] = at::linalg_qr(x);
      expect_value(dq, q);
      expect_value(dr, r);
      (dq.sin().sum() + dr.sum()).backward();
      expect_value(x.grad(), leaf.grad());
    }
  });
}

}  // namespace fallback_test
}  // namespace tessera
