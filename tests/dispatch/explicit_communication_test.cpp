// The scope in which every collective is one that the program wrote.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace tessera {
namespace explicit_communication_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(ExplicitCommunication, NamesOpArgumentStepsAndBytes) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const auto value = torch::arange(32, at::kDouble).view({8, 4});
    const auto x = distribute_tensor(value, mesh, {Shard(0)});
    const auto w = distribute_tensor(value, mesh, {Shard(0)});
    const ExplicitCommunication scope;
    // 2 of 8 rows of 4 doubles a rank.
    EXPECT_THAT(
        error_of([&] { at::mm(x, w.t()); }),
        AllOf(
            HasSubstr("[aten.mm.default] would redistribute argument '"),
            HasSubstr("all_gather("),
            HasSubstr("(64 bytes a rank)"),
            HasSubstr("redistribute(...)")));
    // On gathered inputs too.
    EXPECT_THAT(
        error_of([&] { at::masked_select(x, x > 3); }),
        AllOf(HasSubstr("aten.masked_select"), HasSubstr("all_gather(")));
    const auto whole = w.redistribute({Replicate()});
    const auto y = at::mm(x, whole.t());
    EXPECT_TRUE(DTensor(y).full_tensor().equal(at::mm(value, value.t())));
  });
}

TEST(ExplicitCommunication, HoldsInABackwardPass) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const auto value = torch::arange(32, at::kDouble).view({8, 4});
    const auto leaf = [&](const Placement& placement) {
      return DTensor(
          distribute_tensor(value, mesh, {placement}).requires_grad_());
    };
    const ExplicitCommunication scope;
    // A leaf's gradient comes in its layout, and a sum is reduced where asked.
    const auto x = leaf(Shard(0));
    const auto w = leaf(Replicate());
    DTensor(at::mul(x, w).sum()).redistribute({Replicate()}).backward();
    EXPECT_TRUE(DTensor(w.grad()).full_tensor().equal(value));
    // The formula of a product needs the gradient of a sum that is pending.
    const auto summed = at::mm(leaf(Shard(1)), leaf(Shard(1)).t());
    EXPECT_THAT(
        error_of([&] { at::relu(summed); }),
        AllOf(
            HasSubstr("[aten.relu.default] would redistribute argument 'self'"),
            HasSubstr("from [P(sum)]")));
  });
}

}  // namespace explicit_communication_test
}  // namespace tessera
