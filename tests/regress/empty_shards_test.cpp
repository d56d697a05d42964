// Kernels check dtypes and numbers where there is something to compute, or only
// where there is nothing: a rank with an empty shard used to throw alone, or to
// go on alone while the others threw. Stated over every sample, in dtypes and
// with numbers that not every kernel takes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/samples.h"
#include "testing/worlds.h"

namespace ts = tessera;
using torch::jit::Stack;
using ts::testing::Sample;

namespace empty_shards_test {

// Integers with a number that is none: one device takes it.
TEST(EmptyShards, OfABatchOfProducts) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto added = torch::ones({2, 2}, at::kLong);
    const auto left = torch::arange(30).view({5, 2, 3});
    const auto right = torch::arange(30).view({5, 3, 2});
    const auto everywhere = [&](const at::Tensor& value) {
      return ts::distribute_tensor(value, mesh, {ts::Replicate()});
    };
    const auto batch = [&](const at::Tensor& value) {
      return ts::distribute_tensor(value, mesh, {ts::Shard(0)});
    };
    const ts::DTensor actual(
        at::addbmm(everywhere(added), batch(left), batch(right), 0.5));
    EXPECT_TRUE(actual.full_tensor().equal(
        at::addbmm(added, left, right, at::Scalar(0.5))));
  });
}

// Accumulated gradients of a table of which some ranks' rows are not used.
TEST(EmptyShards, OfSparseHalfGradients) {
  ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    auto table = ts::distribute_tensor(
        torch::ones({8, 2}, at::kHalf), mesh, {ts::Shard(0)});
    table.requires_grad_();
    const auto ids = ts::distribute_tensor(
        torch::tensor({0, 1, 1}), mesh, {ts::Replicate()});
    const auto pass = [&] {
      at::embedding(table, ids, -1, false, /*sparse=*/true).sum().backward();
    };
    pass();
    EXPECT_THROW(pass(), c10::Error);
  });
}

// The call with other tensors.
template <typename Replace>
Stack with_tensors(Stack args, const Replace& replace) {
  for (auto& arg : args) {
    if (arg.isTensor() && arg.toTensor().defined()) {
      arg = replace(arg.toTensor());
    } else if (arg.isTensorList() || arg.isOptionalTensorList()) {
      c10::impl::GenericList list(arg.toList().elementType());
      for (const auto& element : arg.toListRef()) {
        const bool given = element.isTensor() && element.toTensor().defined();
        list.push_back(
            given ? c10::IValue(replace(element.toTensor())) : element);
      }
      arg = list;
    }
  }
  return args;
}

Stack with_numbers(const Sample& sample, Stack args, double number) {
  const auto handle = sample.handle();
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].isScalar() && handle.schema().arguments()[i].type()->kind() ==
                                  c10::TypeKind::NumberType) {
      args[i] = number;
    }
  }
  return args;
}

bool throws(const Sample& sample, Stack args) {
  try {
    sample.handle().callBoxed(args);
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}

// On how many ranks it is so; every rank must ask.
int64_t count_ranks(const ts::DeviceMesh& mesh, bool here) {
  const auto flag = torch::full({}, here ? 1 : 0, at::kLong);
  return ts::DTensor::from_local(flag, mesh, {ts::Partial()})
      .full_tensor()
      .item<int64_t>();
}

// Every tensor sharded along `dim`, where it has that dimension.
Stack laid_out(const Stack& args, const ts::DeviceMesh& mesh, int64_t dim) {
  return with_tensors(args, [&](const at::Tensor& tensor) -> at::Tensor {
    const bool cut = dim < tensor.dim() && tensor.size(dim) > 1;
    return ts::distribute_tensor(
        tensor, mesh, {cut ? ts::Shard(dim) : ts::Replicate()});
  });
}

TEST(EmptyShards, NoRankThrowsAlone) {
  size_t tried = 0;
  size_t refused = 0;
  ts::testing::with_mesh({4}, [&](const ts::DeviceMesh& mesh) {
    for (const auto& sample : ts::testing::all_samples()) {
      for (const auto dtype :
           {at::kDouble, at::kLong, at::kHalf, at::kComplexDouble}) {
        // Derivatives get what the op itself has checked. index_reduce_ of half
        // numbers ends in an internal assert of ATen's on some shards.
        if (sample.op.find("backward") != std::string::npos ||
            sample.op.find("aten::index_reduce") == 0) {
          continue;
        }
        const auto given = sample.arguments();
        const auto args = with_numbers(
            sample,
            with_tensors(
                given,
                [&](const at::Tensor& tensor) {
                  return at::isFloatingType(tensor.scalar_type())
                             ? tensor.to(dtype)
                             : tensor;
                }),
            0.5);
        const auto copies = with_tensors(
            args, [](const at::Tensor& tensor) { return tensor.clone(); });
        const bool refuses = throws(sample, copies);
        for (const int64_t dim : {0, 1}) {
          ++tried;
          const bool thrown = throws(sample, laid_out(args, mesh, dim));
          refused += thrown ? 1 : 0;
          SCOPED_TRACE(
              sample.str() + " of " + toString(dtype) + ", dimension " +
              std::to_string(dim));
          if (ts::testing::over_processes()) {
            const int64_t ranks = count_ranks(mesh, thrown);
            ASSERT_TRUE(ranks == 0 || ranks == 4) << ranks << " ranks threw";
          } else if (!refuses && thrown) {
            ADD_FAILURE() << "one device does not throw";
          }
        }
      }
    }
  });
  EXPECT_GT(tried, 1000);
  EXPECT_GT(refused, 100);
}

}  // namespace empty_shards_test
