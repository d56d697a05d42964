// Only one rank has a value that an op refuses: a label outside the classes, a
// probability outside [0, 1], a zero to divide by. Every rank throws the same
// error, none is left waiting, and the next op works. Run as processes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "tessera/tessera.h"
#include "testing/processes.h"
#include "testing/throws.h"

namespace ts = tessera;

namespace bad_value_test {

const ts::Placement R = ts::Replicate();
const ts::Placement S0 = ts::Shard(0);
const ts::Placement S1 = ts::Shard(1);

using Call = std::function<at::Tensor()>;

class OneBadValue : public ts::testing::FourProcesses {
 protected:
  // Every rank gets the error of the first bad one, and goes on in step.
  static void expect_error(
      const ts::DeviceMesh& mesh,
      int64_t bad_rank,
      const std::string& part,
      const Call& call) {
    const auto text = ts::testing::error_of(call);
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(
        text.find("(rank " + std::to_string(bad_rank) + ")"), std::string::npos)
        << text;
    // The groups are in step: a collective gives its own result.
    const auto sum = ts::DTensor::from_local(
        torch::ones({2}), mesh, ts::Placements(mesh.ndim(), ts::Partial()));
    EXPECT_TRUE(sum.full_tensor().equal(torch::full({2}, 4.0)));
  }

  static ts::World world() {
    return ts::World::from_environment(1, {std::chrono::seconds(20)});
  }

  // A mesh of four ranks, and one of two by two whose first dimension shards.
  static void on_meshes(
      const std::function<
          void(const ts::DeviceMesh&, const ts::Placements& rows)>& body) {
    body(ts::init_device_mesh("cpu", {4}), {S0});
    const auto grid = ts::init_device_mesh("cpu", {2, 2});
    body(grid, {S0, S0});
    body(grid, {S0, R});
  }

  // The first rank that a bad shard of this rank's lives on: replicas have it
  // too.
  static bool is_bad(
      const ts::World& w, const ts::Placements& rows, int64_t bad_rank) {
    return rows.back().is_shard() ? w.rank() == bad_rank
                                  : w.rank() / 2 == bad_rank / 2;
  }
};

TEST_F(OneBadValue, Labels) {
  const auto w = world();
  namespace F = torch::nn::functional;
  on_meshes([&](const ts::DeviceMesh& mesh, const ts::Placements& rows) {
    for (const int64_t bad_rank : {0, 2}) {
      for (const int64_t bad : {5, -7}) {
        auto labels = torch::tensor({1, 4, 0});
        if (is_bad(w, rows, bad_rank)) {
          labels[1] = bad;
        }
        const auto scores = ts::DTensor::from_local(
            torch::arange(15.0).view({3, 5}).requires_grad_(), mesh, rows);
        const auto target = ts::DTensor::from_local(labels, mesh, rows);
        const std::map<std::string, Call> calls{
            {"mean", [&] { return F::cross_entropy(scores, target); }},
            {"sum",
             [&] {
               return F::cross_entropy(
                   scores,
                   target,
                   F::CrossEntropyFuncOptions().reduction(torch::kSum));
             }},
            {"none",
             [&] {
               return F::cross_entropy(
                   scores,
                   target,
                   F::CrossEntropyFuncOptions().reduction(torch::kNone));
             }},
            {"nll_loss", [&] { return torch::nll_loss(scores, target); }}};
        for (const auto& [name, call] : calls) {
          SCOPED_TRACE(name + " on " + ts::to_string(rows));
          expect_error(
              mesh,
              bad_rank,
              "Target " + std::to_string(bad) + " is out of bounds",
              call);
        }
      }
    }
  });
}

TEST_F(OneBadValue, Probabilities) {
  const auto w = world();
  on_meshes([&](const ts::DeviceMesh& mesh, const ts::Placements& rows) {
    for (const auto reduction :
         {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
      SCOPED_TRACE(ts::to_string(rows) + std::to_string(reduction));
      auto local = torch::full({3, 2}, 0.5);
      if (is_bad(w, rows, 2)) {
        local[2][1] = 1.5;
      }
      const auto p = ts::DTensor::from_local(local, mesh, rows);
      const auto good =
          ts::DTensor::from_local(torch::full({3, 2}, 0.25), mesh, rows);
      expect_error(mesh, 2, "between 0 and 1", [&] {
        return at::binary_cross_entropy(p, good, {}, reduction);
      });
    }
  });
}

TEST_F(OneBadValue, Divisors) {
  const auto w = world();
  on_meshes([&](const ts::DeviceMesh& mesh, const ts::Placements& rows) {
    auto local = torch::tensor({{1, 2}, {3, 4}});
    if (is_bad(w, rows, 2)) {
      local[1][0] = 0;
    }
    const auto divisor = ts::DTensor::from_local(local, mesh, rows);
    const auto number =
        ts::DTensor::from_local(torch::full({2, 2}, 12), mesh, rows);
    const std::map<std::string, Call> calls{
        {"floor_divide", [&] { return number.floor_divide(divisor); }},
        {"floor", [&] { return at::div(number, divisor, "floor"); }},
        {"trunc", [&] { return at::div(number, divisor, "trunc"); }},
        {"remainder", [&] { return number.remainder(divisor); }},
        {"fmod", [&] { return number.fmod(divisor); }},
        {"of a scalar", [&] { return at::remainder(12, divisor); }},
        {"floor_divide_",
         [&] { return number.clone().floor_divide_(divisor); }},
        {"remainder_", [&] { return number.clone().remainder_(divisor); }},
        {"fmod_", [&] { return number.clone().fmod_(divisor); }},
        {"div_", [&] { return number.clone().div_(divisor, "floor"); }},
        {"out", [&] {
           auto out = at::empty_like(number);
           return at::floor_divide_out(out, number, divisor);
         }}};
    for (const auto& [name, call] : calls) {
      SCOPED_TRACE(name + " on " + ts::to_string(rows));
      expect_error(mesh, 2, "ZeroDivisionError", call);
    }
    // Of other dtypes nothing is refused, and nobody is asked.
    const ts::CommDebugMode comm;
    at::div(number, divisor);
    number.to(torch::kFloat).remainder(divisor);
    number.floor_divide(5);
    EXPECT_EQ(comm.get_total_counts(), 0) << comm;
  });
}

// What every rank has is refused only by those that have something to do.
TEST_F(OneBadValue, WhereSomeShardsAreEmpty) {
  const auto w = world();
  const auto mesh = ts::init_device_mesh("cpu", {4});
  const auto on = [&](const at::Tensor& value, const ts::Placement& placement) {
    return ts::distribute_tensor(
        value, mesh, {placement}, {.same_on_all_ranks = true});
  };
  const auto x = on(torch::arange(6).view({2, 3}), S0);
  const std::map<std::string, std::pair<std::string, Call>> calls{
      {"remainder",
       {"ZeroDivisionError",
        [&] { return x.remainder(on(torch::tensor({1, 0, 2}), R)); }}},
      {"remainder by a number",
       {"ZeroDivisionError", [&] { return x.remainder(0); }}},
      {"index_select",
       {"bounds",
        [&] { return x.index_select(1, on(torch::tensor({0, 3}), R)); }}},
      {"index",
       {"bounds",
        [&] {
          return x.index(
              {torch::indexing::Slice(), on(torch::tensor({0, 3}), R)});
        }}},
      {"gather",
       {"",
        [&] { return x.gather(1, on(torch::tensor({{0, 3}, {1, 1}}), S0)); }}},
      {"index_add", {"bounds", [&] {
                       return x.index_add(
                           1,
                           on(torch::tensor({0, 3}), R),
                           on(torch::ones({2, 2}).to(at::kLong), S0));
                     }}}};
  for (const auto& [name, expected] : calls) {
    SCOPED_TRACE(name);
    expect_error(mesh, 0, expected.first, expected.second);
  }
}

}  // namespace bad_value_test
