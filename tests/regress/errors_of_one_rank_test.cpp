// A bad value in one rank's shard must not be an error of only that rank: the
// others would wait for it. Stated over every sample: an op that throws for a
// value of a sharded tensor has told the other ranks, or has got the values
// from all of them.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <optional>
#include <set>
#include <string>

#include "tessera/tessera.h"
#include "testing/layouts.h"
#include "testing/samples.h"
#include "testing/worlds.h"

namespace ts = tessera;
using torch::jit::Stack;
using ts::testing::Sample;

namespace errors_of_one_rank_test {

// The tensors of a call, lists laid out flat.
std::vector<at::Tensor> tensors_of(const Stack& args) {
  std::vector<at::Tensor> tensors;
  for (const auto& arg : args) {
    if (arg.isTensor() && arg.toTensor().defined()) {
      tensors.push_back(arg.toTensor());
    } else if (arg.isTensorList() || arg.isOptionalTensorList()) {
      for (const auto& element : arg.toListRef()) {
        if (element.isTensor() && element.toTensor().defined()) {
          tensors.push_back(element.toTensor());
        }
      }
    }
  }
  return tensors;
}

// The call with other tensors.
Stack with_tensors(Stack args, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  for (auto& arg : args) {
    if (arg.isTensor() && arg.toTensor().defined()) {
      arg = tensors[next++];
    } else if (arg.isTensorList() || arg.isOptionalTensorList()) {
      c10::impl::GenericList list(arg.toList().elementType());
      for (const auto& element : arg.toListRef()) {
        const bool given = element.isTensor() && element.toTensor().defined();
        list.push_back(given ? c10::IValue(tensors[next++]) : element);
      }
      arg = list;
    }
  }
  return args;
}

std::optional<std::string> error_of(const Sample& sample, Stack args) {
  try {
    sample.handle().callBoxed(args);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return std::nullopt;
}

// The tensor with a bad last element, which is in the last shard.
at::Tensor corrupted(const at::Tensor& tensor, double value) {
  auto copy = tensor.clone(at::MemoryFormat::Contiguous);
  copy.view({-1})[copy.numel() - 1].fill_(value);
  return copy;
}

std::vector<double> bad_values(c10::ScalarType dtype) {
  if (c10::isIntegralType(dtype, /*includeBool=*/false)) {
    return {0, -1, -100, 1000};
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return c10::isFloatingType(dtype)
             ? std::vector<double>{-3, 7, kInfinity, -kInfinity, std::nan("")}
             : std::vector<double>();
}

// Every dimension of the corrupted tensor sharded in turn, the others as they
// fit: sharded alike where they have that dimension, and whole.
std::vector<std::vector<ts::Placements>> layouts_for(
    const std::vector<at::Tensor>& tensors, size_t bad) {
  std::vector<std::vector<ts::Placements>> all;
  for (int64_t d = 0; d < tensors[bad].dim(); ++d) {
    for (const bool alike : {true, false}) {
      std::vector<ts::Placements> layouts;
      for (size_t i = 0; i < tensors.size(); ++i) {
        const bool cut =
            i == bad || (alike && d < tensors[i].dim() &&
                         tensors[i].size(d) == tensors[bad].size(d));
        layouts.push_back({cut ? ts::Shard(d) : ts::Replicate()});
      }
      all.push_back(std::move(layouts));
    }
  }
  return all;
}

// Every sample, and divisions of integers: samples are of numbers that are not
// refused.
std::vector<Sample> samples() {
  auto all = ts::testing::all_samples();
  const auto divisors =
      ts::testing::t({4, 3}).with(ts::testing::Values::AboveOne).as(at::kLong);
  for (const char* op :
       {"aten::remainder.Tensor",
        "aten::remainder_.Tensor",
        "aten::fmod.Tensor",
        "aten::floor_divide"}) {
    all.push_back({op, {ts::testing::ints({4, 3}), divisors}});
  }
  for (const char* op : {"aten::div.Tensor_mode", "aten::div_.Tensor_mode"}) {
    all.push_back({op, {ts::testing::ints({4, 3}), divisors, "floor"}});
  }
  return all;
}

TEST(ErrorsOfOneRank, AreToldToTheOthers) {
  if (ts::testing::over_processes()) {
    return;  // a rank that were not told would wait
  }
  std::set<std::string> refusing;
  ts::testing::with_mesh({2}, [&](const ts::DeviceMesh& mesh) {
    for (const auto& sample : samples()) {
      // Derivatives get what the op itself has checked, and do not check again.
      // segment_reduce follows its offsets wherever they point, and MKL's dgeev
      // writes past its memory when it is given a NaN.
      if (sample.op.find("backward") != std::string::npos ||
          sample.op == "aten::linalg_eig" ||
          sample.op == "aten::_linalg_eigvals" ||
          sample.op == "aten::segment_reduce") {
        continue;
      }
      const auto args = sample.arguments();
      const auto good = tensors_of(args);
      if (error_of(sample, sample.arguments()).has_value()) {
        continue;
      }
      for (size_t bad = 0; bad < good.size(); ++bad) {
        for (const double value : bad_values(good[bad].scalar_type())) {
          if (good[bad].numel() == 0) {
            continue;
          }
          auto tensors = tensors_of(sample.arguments());
          tensors[bad] = corrupted(tensors[bad], value);
          if (!error_of(sample, with_tensors(args, tensors)).has_value()) {
            continue;
          }
          refusing.insert(sample.op);
          for (const auto& layouts : layouts_for(good, bad)) {
            std::vector<at::Tensor> distributed;
            for (size_t i = 0; i < tensors.size(); ++i) {
              distributed.push_back(
                  ts::testing::laid_out(tensors[i], mesh, layouts[i], 1));
            }
            const ts::CommDebugMode comm;
            const auto error =
                error_of(sample, with_tensors(args, distributed));
            EXPECT_TRUE(error.has_value())
                << sample.str() << ", tensor " << bad << " with " << value
                << " on " << ts::to_string(layouts[bad])
                << ": one device refuses it";
            EXPECT_GT(comm.get_total_counts(), 0)
                << sample.str() << ", tensor " << bad << " with " << value
                << " on " << ts::to_string(layouts[bad]) << ": "
                << error.value_or("");
          }
        }
      }
    }
  });
  // The class is not empty.
  for (const char* op :
       {"aten::index_select",
        "aten::nll_loss_forward",
        "aten::binary_cross_entropy",
        "aten::remainder.Tensor",
        "aten::div_.Tensor_mode",
        "aten::floor_divide"}) {
    EXPECT_EQ(refusing.count(op), 1) << op;
  }
}

}  // namespace errors_of_one_rank_test
