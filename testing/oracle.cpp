#include "testing/oracle.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <exception>
#include <numeric>
#include <optional>
#include <set>

#include "dispatch/autograd.h"
#include "dispatch/tensor.h"
#include "tessera/debug.h"
#include "tessera/scopes.h"
#include "testing/rejoin.h"
#include "testing/worlds.h"

namespace tessera::testing {

namespace {

// The stack with `tensors` in the place of its own, lists made anew.
torch::jit::Stack with_tensors(
    const torch::jit::Stack& arguments,
    const std::vector<at::Tensor>& tensors) {
  torch::jit::Stack stack(arguments);
  size_t next = 0;
  for (auto& value : stack) {
    if (value.isTensor()) {
      value = tensors[next++];
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (size_t i = 0; i < value.toTensorVector().size(); ++i) {
        list.push_back(tensors[next++]);
      }
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& given : value.toOptionalTensorVector()) {
        list.push_back(
            given.has_value() ? std::optional(tensors[next++]) : std::nullopt);
      }
      value = list;
    }
  }
  return stack;
}

bool has_out(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (argument.is_out()) {
      return true;
    }
  }
  return false;
}

bool takes_gradient(const at::Tensor& tensor) {
  return c10::isFloatingType(tensor.scalar_type()) ||
         c10::isComplexType(tensor.scalar_type());
}

// A gradient for a result: the same values on every layout.
at::Tensor incoming_gradient(
    const at::Tensor& result, size_t index, const DeviceMesh* mesh) {
  TensorRecipe recipe;
  recipe.sizes = Sizes(result.sizes());
  recipe.dtype = result.scalar_type();
  auto gradient = recipe.make(1000 + index);
  if (mesh == nullptr) {
    return gradient;
  }
  // Formulas must take gradients in any layout, too.
  std::mt19937_64 random(result.dim() * 17 + index + mesh->ndim());
  return laid_out(gradient, *mesh, random_layout(gradient, *mesh, random), 77);
}

void take_results(torch::jit::Stack& stack, Evaluation& evaluation) {
  for (const auto& value : stack) {
    if (value.isTensor()) {
      evaluation.results.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const auto& tensor : value.toTensorVector()) {
        evaluation.results.push_back(tensor);
      }
    } else {
      evaluation.numbers.push_back(value);
    }
  }
}

void run_backward(
    const std::vector<at::Tensor>& leaves,
    const DeviceMesh* mesh,
    Evaluation& evaluation) {
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < evaluation.results.size(); ++i) {
    auto result = evaluation.results[i];
    if (result.defined() && result.requires_grad() && result.is_leaf()) {
      result = result * 1;  // the argument itself: nothing was done with it
    }
    if (result.defined() && result.requires_grad()) {
      roots.push_back(result);
      gradients.push_back(incoming_gradient(result, i, mesh));
    }
  }
  if (roots.empty()) {
    return;
  }
  evaluation.gradients = torch::autograd::grad(
      roots,
      leaves,
      gradients,
      /*retain_graph=*/false,
      /*create_graph=*/false,
      /*allow_unused=*/true);
}

std::vector<int64_t> reversed_dims(const at::Tensor& tensor) {
  std::vector<int64_t> order(tensor.dim());
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

// A tensor whose last dimension is outermost in memory. Its placements name the
// dimensions that it has, not those in memory.
at::Tensor laid_out_transposed(
    const at::Tensor& value,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    uint64_t seed) {
  const auto order = reversed_dims(value);
  Placements in_memory(placements.begin(), placements.end());
  for (auto& placement : in_memory) {
    if (placement.is_shard()) {
      placement = Shard(value.dim() - 1 - placement.dim());
    }
  }
  const auto reversed = value.permute(order).contiguous();
  return laid_out(reversed, mesh, in_memory, seed).permute(order);
}

// Whether it is said of the op's results that they are inference tensors just
// where plain ones are. view.dtype of a plain tensor makes an inference tensor
// of any; contiguous is itself where shards are contiguous; and some return
// views that the schema calls new tensors, which new ones may then be.
bool has_kind(const std::string& op) {
  static const std::set<std::string> others = {
      "aten::_unsafe_view",
      "aten::contiguous",
      "aten::unsafe_split.Tensor",
      "aten::unsafe_split_with_sizes",
      "aten::view.dtype",
  };
  return others.count(op) == 0;
}

// Whether results are inference tensors just where plain ones are.
std::string compare_kinds(
    const std::vector<at::Tensor>& actual,
    const std::vector<at::Tensor>& expected) {
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i].defined() &&
        actual[i].is_inference() != expected[i].is_inference()) {
      return "result " + std::to_string(i) +
             (actual[i].is_inference() ? " is" : " is not") +
             " an inference tensor, unlike the plain one";
    }
  }
  return "";
}

// How a distributed result differs from the plain one.
std::string compare_tensor(
    const at::Tensor& actual,
    const at::Tensor& expected,
    const DeviceMesh& mesh,
    c10::ScalarType precision) {
  if (actual.defined() != expected.defined()) {
    return actual.defined() ? "is defined, unlike the plain one"
                            : "is undefined, unlike the plain one";
  }
  if (!expected.defined()) {
    return "";
  }
  if (!is_dtensor(actual)) {
    return "is not distributed";
  }
  const auto& meta = detail::distributed_meta(actual);
  try {
    detail::check_shards(*meta.spec, detail::current_shards(actual));
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  const auto full = DTensor(actual.detach()).full_tensor();
  if (outside(mesh)) {
    return "";  // this rank takes no part
  }
  auto text = difference(full, expected.detach(), precision);
  if (!text.empty()) {
    text += "\nin the layout " + meta.spec->str();
  }
  return text;
}

std::string compare_all(
    const char* what,
    const std::vector<at::Tensor>& actual,
    const std::vector<at::Tensor>& expected,
    const DeviceMesh& mesh,
    c10::ScalarType precision) {
  if (actual.size() != expected.size()) {
    return std::string("expected ") + std::to_string(expected.size()) + " " +
           what + "s, got " + std::to_string(actual.size());
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto text = compare_tensor(actual[i], expected[i], mesh, precision);
    if (!text.empty()) {
      return std::string(what) + " " + std::to_string(i) + ": " + text;
    }
  }
  return "";
}

// A gradient that is missing on one side counts as zero.
void fill_missing(
    std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& leaves) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) {
      gradients[i] = at::zeros_like(leaves[i].detach());
    }
  }
}

// Which gradient is not placed as its leaf; empty if none. A pending
// reduction's is replicated.
std::string misplaced_gradient(
    const std::vector<at::Tensor>& gradients,
    const std::vector<Placements>& leaves) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto placements = DTensor(gradients[i]).placements();
    if (placements != PlacementsRef(detail::grad_placements_of(leaves[i]))) {
      return "gradient " + std::to_string(i) + " is laid out as " +
             to_string(placements) + ", its leaf as " + to_string(leaves[i]);
    }
  }
  return "";
}

}  // namespace

std::string layouts_text(const std::vector<Placements>& layouts) {
  std::string text;
  for (const auto& layout : layouts) {
    text += (text.empty() ? "" : ", ") + to_string(layout);
  }
  return text;
}

Oracle::Oracle(const Sample& sample, uint64_t seed)
    : sample_(sample),
      op_(sample.handle()),
      seed_(seed),
      arguments_(sample.arguments(seed)) {
  const auto& schema = op_.schema();
  const auto add = [&](const at::Tensor& tensor, size_t argument) {
    tensors_.push_back(tensor);
    owners_.push_back(argument);
    written_.push_back(is_written(schema.arguments()[argument]));
    precision_ = coarser(precision_, tensor.scalar_type());
  };
  for (size_t i = 0; i < arguments_.size(); ++i) {
    for (const auto& tensor : tensors_in(arguments_[i])) {
      if (tensor.defined()) {
        add(tensor, i);
      }
    }
  }
  std::vector<at::Tensor> copies;
  for (const auto& tensor : tensors_) {
    copies.push_back(tensor.clone());
  }
  expected_ = evaluate(copies, nullptr, /*backward=*/false);
  for (const auto& result : expected_.results) {
    if (result.defined()) {
      precision_ = coarser(precision_, result.scalar_type());
    }
  }
  if (sample_.forward_only || has_out(schema)) {
    return;
  }
  try {
    expected_.gradients = evaluate(copies, nullptr, true).gradients;
    differentiable_ = !expected_.gradients.empty();
  } catch (const c10::Error&) {
    // One device has no derivative either.
  }
}

Evaluation Oracle::evaluate(
    const Arranged& tensors, const DeviceMesh* mesh, bool backward) const {
  std::vector<at::Tensor> leaves;
  std::vector<at::Tensor> given;
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto tensor = tensors[i];
    if (backward && takes_gradient(tensor)) {
      tensor = tensor.detach().requires_grad_();
      leaves.push_back(tensor);
    }
    // Leaves cannot be written, and plain evaluations share their arguments.
    given.push_back(written_[i] ? tensor.clone() : tensor);
  }
  auto stack = with_tensors(arguments_, given);
  op_.callBoxed(&stack);
  Evaluation evaluation;
  take_results(stack, evaluation);
  for (size_t i = 0; i < given.size(); ++i) {
    if (written_[i]) {
      evaluation.written.push_back(given[i]);
    }
  }
  if (backward) {
    run_backward(leaves, mesh, evaluation);
    fill_missing(evaluation.gradients, leaves);
  }
  return evaluation;
}

bool Oracle::may_refuse(const std::vector<Placements>& layouts) const {
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (const auto& placement : layouts[i]) {
      if (written_[i] && (placement.is_partial() ||
                          (sample_.refuses_shards && placement.is_shard()))) {
        return true;
      }
    }
  }
  return false;
}

std::string Oracle::compare(
    const Evaluation& actual, const DeviceMesh& mesh) const {
  auto text = compare_all(
      "result", actual.results, expected_.results, mesh, precision_);
  if (text.empty()) {
    text = compare_all(
        "written", actual.written, expected_.written, mesh, precision_);
  }
  if (text.empty() && actual.numbers != expected_.numbers && !outside(mesh)) {
    text = "a number differs";
  }
  return text;
}

Oracle::Arranged Oracle::arrange(
    const DeviceMesh& mesh,
    const std::vector<Placements>& layouts,
    bool transposed) const {
  Arranged arranged;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const uint64_t seed = seed_ + 13 * i;
    arranged.push_back(
        transposed ? laid_out_transposed(tensors_[i], mesh, layouts[i], seed)
                   : laid_out(tensors_[i], mesh, layouts[i], seed));
  }
  return arranged;
}

std::string Oracle::failure_of(
    const Arranged& tensors,
    const DeviceMesh& mesh,
    const std::vector<Placements>& layouts) const {
  auto failure = compare(evaluate(tensors, &mesh, false), mesh);
  if (!failure.empty() || !differentiable_) {
    return failure;
  }
  const auto actual = evaluate(tensors, &mesh, true);
  failure = compare(actual, mesh);
  if (failure.empty()) {
    failure = compare_all(
        "gradient", actual.gradients, expected_.gradients, mesh, precision_);
  }
  if (!failure.empty()) {
    return failure;
  }
  std::vector<Placements> leaves;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (takes_gradient(tensors_[i])) {
      leaves.push_back(layouts[i]);
    }
  }
  return misplaced_gradient(actual.gradients, leaves);
}

bool Oracle::refused_transposed() const {
  Arranged tensors;
  for (const auto& tensor : tensors_) {
    const auto order = reversed_dims(tensor);
    tensors.push_back(tensor.permute(order).contiguous().permute(order));
  }
  try {
    evaluate(tensors, nullptr, false);
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}

std::string Oracle::failure_in_inference_mode(
    const DeviceMesh& mesh,
    const std::vector<Placements>& layouts,
    bool inside) const {
  std::optional<c10::InferenceMode> mode;
  if (inside) {
    mode.emplace();
  }
  const auto arranged = arrange(mesh, layouts, /*transposed=*/false);
  Arranged plain;
  for (const auto& tensor : tensors_) {
    plain.push_back(tensor.clone());
  }
  if (!inside) {
    mode.emplace();
  }
  const auto expected = evaluate(plain, nullptr, false);
  const auto actual = evaluate(arranged, &mesh, false);
  const auto failure = compare(actual, mesh);
  return failure.empty() && has_kind(sample_.op)
             ? compare_kinds(actual.results, expected.results)
             : failure;
}

// An op either does without communication or says what it would do. That the
// ranks agree on how a check of values went is no redistribution.
std::string Oracle::failure_in_explicit_scope(
    const DeviceMesh& mesh,
    const std::vector<Placements>& layouts,
    bool& refused) const {
  const auto arranged = arrange(mesh, layouts, /*transposed=*/false);
  Evaluation actual;
  {
    const CommDebugMode comm;
    try {
      const ExplicitCommunication scope;
      actual = evaluate(arranged, &mesh, false);
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      refused = message.find("explicit communication") != std::string::npos;
      if (!refused) {
        throw;
      }
    }
    for (const auto& record : comm.get_records()) {
      if (record.collective != "agree") {
        return record.op + " issued a " + record.collective;
      }
    }
  }
  return refused ? "" : compare(actual, mesh);
}

Oracle::Verdict Oracle::check(
    const DeviceMesh& mesh,
    const std::vector<Placements>& layouts,
    Circumstances circumstances) const {
  Verdict verdict;
  try {
    switch (circumstances) {
      case Circumstances::Usual:
        verdict.failure =
            failure_of(arrange(mesh, layouts, false), mesh, layouts);
        break;
      case Circumstances::Transposed:
        verdict.refused = refused_transposed();
        if (!verdict.refused) {
          verdict.failure =
              failure_of(arrange(mesh, layouts, true), mesh, layouts);
        }
        break;
      case Circumstances::Inference:
      case Circumstances::InferenceInside:
        verdict.failure = failure_in_inference_mode(
            mesh, layouts, circumstances == Circumstances::InferenceInside);
        break;
      case Circumstances::Explicit:
        verdict.failure =
            failure_in_explicit_scope(mesh, layouts, verdict.refused);
        break;
    }
  } catch (const c10::NotImplementedError& error) {
    const std::string message = error.what_without_backtrace();
    const bool named = message.find("aten.") != std::string::npos;
    const bool expected = !sample_.refusal.empty() &&
                          message.find(sample_.refusal) != std::string::npos;
    verdict.refused = expected || (may_refuse(layouts) && named);
    if (!verdict.refused) {
      verdict.failure = "refused: " + message;
    }
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    // A number that is no tensor cannot be had there.
    verdict.refused =
        outside(mesh) &&
        message.find("this rank is outside the mesh") != std::string::npos;
    if (!verdict.refused) {
      verdict.failure = "threw: " + message;
    }
  } catch (const std::exception& error) {
    verdict.failure = std::string("threw: ") + error.what();
  }
  if (!verdict.failure.empty()) {
    verdict.failure = sample_.str() + " on " + mesh.str() + " with " +
                      layouts_text(layouts) + ": " + verdict.failure;
  }
  return verdict;
}

}  // namespace tessera::testing
