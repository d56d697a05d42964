#include "testing/validator.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <sstream>

#include "rules/pointwise.h"
#include "testing/layouts.h"
#include "testing/rejoin.h"
#include "testing/validator_case.h"

namespace tessera::testing {

namespace {

// Layouts are tried with this many sets of values before one is called missing.
constexpr uint64_t kValueSets = 3;
using Cases = std::deque<Case>;

std::string text_of(const Placed& placements) {
  std::string text;
  for (const auto& placement : placements) {
    text += (text.empty() ? "" : ",") + placement.str();
  }
  return text;
}

bool fits(const Placement& placement, SizesRef sizes) {
  return !placement.is_shard() ||
         placement.dim() < static_cast<int64_t>(sizes.size());
}

Evenness evenness_of(
    const Placement& placement,
    SizesRef sizes,
    const DeviceMesh& mesh,
    const Row* row = nullptr) {
  if (!placement.is_shard()) {
    return Evenness::Even;
  }
  const int64_t size = sizes[placement.dim()];
  return evenness(
      row == nullptr ? size : row->units_of(size),
      placement.dim(),
      mesh,
      placement);
}

// Whether the row holds for these sizes at all, and for shards like these.
bool applies(const Row& row, const Case& trial, const DeviceMesh& mesh) {
  const auto most = row.needs == Needs::Even       ? Evenness::Even
                    : row.needs == Needs::NonEmpty ? Evenness::NonEmpty
                                                   : Evenness::Any;
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    const auto& tensor = trial.tensors()[i];
    if (!tensor.defined()) {
      continue;
    }
    if (!fits(row.inputs[i], tensor.sizes()) ||
        evenness_of(row.inputs[i], tensor.sizes(), mesh, &row) > most ||
        (row.inputs[i].is_partial() &&
         !can_be_pending(tensor.scalar_type(), row.inputs[i].reduce_op()))) {
      return false;
    }
  }
  for (size_t o = 0; o < row.outputs.size(); ++o) {
    const auto& sizes = trial.output_sizes()[o];
    if (!fits(row.outputs[o], sizes) ||
        evenness_of(row.outputs[o], sizes, mesh, &row) > most) {
      return false;
    }
  }
  return true;
}

// What is wrong with the row here; empty if nothing is.
std::string try_row(const Row& row, const Case& trial, const DeviceMesh& mesh) {
  const Placed in(row.inputs.begin(), row.inputs.end());
  const Placed out(row.outputs.begin(), row.outputs.end());
  try {
    const auto results = trial.run(mesh, in, out);
    for (size_t o = 0; o < out.size(); ++o) {
      const auto text =
          rejoined_difference(results, o, trial.expected()[o], out[o], mesh);
      if (!text.empty()) {
        return "result " + std::to_string(o) + ": " + text;
      }
    }
    return "";
  } catch (const c10::Error& error) {
    return std::string("the local call threw: ") +
           error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("the local call threw: ") + error.what();
  }
}

// All input layouts of whole, sharded and summed tensors, but for the one where
// all are whole. Dimensions of size 0 and 1 are not sharded: parts of them are
// no parts.
std::vector<Placed> input_layouts(const Case& trial) {
  std::vector<Placed> layouts{{}};
  for (const auto& tensor : trial.tensors()) {
    Placed choices{Replicate()};
    if (tensor.defined()) {
      for (int64_t d = 0; d < tensor.dim(); ++d) {
        if (tensor.size(d) > 1) {
          choices.push_back(Shard(d));
        }
      }
      if (can_be_pending(tensor.scalar_type(), ReduceOp::Sum)) {
        choices.push_back(Partial(ReduceOp::Sum));
      }
    }
    std::vector<Placed> longer;
    for (const auto& layout : layouts) {
      for (const auto& choice : choices) {
        longer.push_back(layout);
        longer.back().push_back(choice);
      }
    }
    layouts = std::move(longer);
  }
  layouts.erase(layouts.begin());
  return layouts;
}

bool any_empty(const std::vector<Placed>& sets) {
  return std::any_of(
      sets.begin(), sets.end(), [](const Placed& set) { return set.empty(); });
}

// An op in place leaves what it writes, its first tensor, where it lies.
void keep_written_layouts(
    const OpCall& call, const Placed& in, std::vector<Placed>& right) {
  const auto& arguments = call.schema().arguments();
  if (!arguments.empty() && is_written(arguments[0])) {
    std::erase_if(right[0], [&](const Placement& placement) {
      return placement != in[0];
    });
  }
}

// The placements of each result that are right for these inputs; nullopt if
// some result has none. Local arguments need to know the result's placement, so
// each is tried as all results'.
std::optional<std::vector<Placed>> right_outputs(
    const Case& trial, const DeviceMesh& mesh, const Placed& in) {
  Placed candidates{Replicate(), Partial(ReduceOp::Sum)};
  int64_t ndim = 0;
  for (const auto& sizes : trial.output_sizes()) {
    ndim = std::max(ndim, static_cast<int64_t>(sizes.size()));
  }
  for (int64_t d = 0; d < ndim; ++d) {
    candidates.push_back(Shard(d));
  }
  std::vector<Placed> right(trial.expected().size());
  for (const auto& candidate : candidates) {
    Placed out(trial.expected().size());
    for (size_t o = 0; o < out.size(); ++o) {
      out[o] =
          fits(candidate, trial.output_sizes()[o]) ? candidate : Replicate();
    }
    try {
      const auto results = trial.run(mesh, in, out);
      for (size_t o = 0; o < out.size(); ++o) {
        if (out[o] == candidate &&
            rejoined_difference(
                results, o, trial.expected()[o], candidate, mesh)
                .empty()) {
          right[o].push_back(candidate);
        }
      }
    } catch (const std::exception&) {
      // These parts are none that the op takes.
    }
  }
  keep_written_layouts(trial.call(), in, right);
  return any_empty(right) ? std::nullopt : std::optional(std::move(right));
}

void keep_common(std::vector<Placed>& left, const std::vector<Placed>& right) {
  for (size_t o = 0; o < left.size(); ++o) {
    std::erase_if(left[o], [&](const Placement& placement) {
      return std::find(right[o].begin(), right[o].end(), placement) ==
             right[o].end();
    });
  }
}

// Whether all inputs that are sharded are split evenly.
bool cut_evenly(const Case& trial, const DeviceMesh& mesh, const Placed& in) {
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].is_shard() &&
        evenness_of(in[i], trial.tensors()[i].sizes(), mesh) !=
            Evenness::Even) {
      return false;
    }
  }
  return true;
}

// Tries a layout on all meshes that split it evenly (all, if fewer than two
// do); the placements of the results that were right in every trial, if any.
std::optional<std::vector<Placed>> survives(
    const Cases& cases, c10::ArrayRef<DeviceMesh> meshes, const Placed& in) {
  std::vector<const DeviceMesh*> even;
  for (const auto& mesh : meshes) {
    if (cut_evenly(cases[0], mesh, in)) {
      even.push_back(&mesh);
    }
  }
  if (even.size() < 2) {
    even.clear();
    for (const auto& mesh : meshes) {
      even.push_back(&mesh);
    }
  }
  std::optional<std::vector<Placed>> common;
  for (const auto* mesh : even) {
    for (const auto& trial : cases) {
      const auto right = right_outputs(trial, *mesh, in);
      if (!right) {
        return std::nullopt;
      }
      if (!common) {
        common = right;
      }
      keep_common(*common, *right);
      if (any_empty(*common)) {
        return std::nullopt;
      }
    }
  }
  return common;
}

// Placements of arguments that were not given mean nothing.
bool has_row(const Rows& rows, const Case& trial, const Placed& in) {
  return std::any_of(rows.begin(), rows.end(), [&](const Row& row) {
    for (size_t i = 0; i < in.size(); ++i) {
      if (trial.tensors()[i].defined() && row.inputs[i] != in[i]) {
        return false;
      }
    }
    return true;
  });
}

void find_wrong(
    const Sample& sample,
    const Cases& cases,
    const Rows& rows,
    c10::ArrayRef<DeviceMesh> meshes,
    Report& report) {
  for (const Row& row : rows) {
    std::string failure;
    for (const auto& mesh : meshes) {
      for (const auto& trial : cases) {
        if (failure.empty() && applies(row, trial, mesh)) {
          ++report.rows;
          failure = try_row(row, trial, mesh);
          if (!failure.empty()) {
            failure =
                "on " + std::to_string(mesh.size()) + " ranks, " + failure;
          }
        }
      }
    }
    if (!failure.empty()) {
      report.wrong.push_back({sample.str(), row.str(), failure});
    }
  }
}

// Kernels that read tensors as if their shapes agreed, without a check: parts
// that do not agree would be read and written past their end.
bool is_unchecked(const std::string& op) {
  static const std::set<std::string> ops = {
      "aten::_adaptive_avg_pool2d_backward",
      "aten::_adaptive_avg_pool3d_backward",
      "aten::_log_softmax_backward_data",
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
      "aten::_softmax_backward_data",
      "aten::adaptive_max_pool2d_backward",
      "aten::adaptive_max_pool3d_backward",
      "aten::avg_pool2d_backward",
      "aten::avg_pool3d_backward",
      "aten::convolution_backward",
      "aten::embedding_dense_backward",
      "aten::glu_backward",
      "aten::log_sigmoid_backward",
      "aten::max_pool2d_with_indices_backward",
      "aten::native_group_norm",
      "aten::native_group_norm_backward",
      "aten::native_layer_norm",
      "aten::native_layer_norm_backward",
      "aten::nll_loss_backward",
      "aten::nll_loss_forward",
      "tessera::causal_attention",
      "tessera::causal_attention_backward",
  };
  return ops.count(op) != 0;
}

// Kernels that read tensors of different shapes against each other, without a
// check: layouts without a row are not tried at all.
bool is_unsafe(const std::string& op) {
  static const std::set<std::string> ops = {
      "aten::_cdist_backward",
      "aten::_cholesky_solve_helper",
      "aten::_segment_reduce_backward",
      "aten::linalg_ldl_solve",
      "aten::lu_unpack",
      "aten::max_pool3d_with_indices_backward",
      "aten::nll_loss2d_backward",
      "tessera::ctc_loss_backward",
  };
  return ops.count(op) != 0;
}

// Kernels that write where indices say, without a look at the size there is.
bool writes_by_index(const std::string& op) {
  return op.find("pool") != std::string::npos && op.ends_with("_backward");
}

// Whether dimensions that are as long in two tensors are as long in their
// parts, and indices are those of the whole. With `by_index` no dimension is
// cut that is of another length in another tensor.
bool cut_alike(const Case& trial, const Placed& in, bool by_index) {
  const auto& tensors = trial.tensors();
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].is_partial() &&
        c10::isIntegralType(tensors[i].scalar_type(), /*includeBool=*/true)) {
      return false;
    }
    for (size_t k = 0; k < in.size(); ++k) {
      if (!in[i].is_shard() || !tensors[k].defined()) {
        continue;
      }
      const int64_t d = in[i].dim();
      if (d >= tensors[k].dim()) {
        continue;
      }
      const bool as_long = tensors[k].size(d) == tensors[i].size(d);
      if (as_long ? !in[k].is_shard(d) : by_index) {
        return false;
      }
    }
  }
  return true;
}

void find_missing(
    const Sample& sample,
    const Cases& cases,
    const Rows& rows,
    c10::ArrayRef<DeviceMesh> meshes,
    Report& report) {
  if (is_unsafe(sample.op)) {
    return;
  }
  for (const auto& in : input_layouts(cases[0])) {
    if (has_row(rows, cases[0], in) ||
        (is_unchecked(sample.op) &&
         !cut_alike(cases[0], in, writes_by_index(sample.op)))) {
      continue;
    }
    ++report.combinations;
    const auto outputs = survives(cases, meshes, in);
    if (!outputs) {
      continue;
    }
    std::string row = text_of(in) + "->";
    for (size_t o = 0; o < outputs->size(); ++o) {
      auto choices = text_of((*outputs)[o]);
      std::replace(choices.begin(), choices.end(), ',', '|');
      row += (o == 0 ? "" : ",") + choices;
    }
    report.missing.push_back({sample.str(), row, "right, but has no row"});
  }
}

}  // namespace

std::string Finding::str() const { return sample + ": " + row + ": " + detail; }

std::string Report::summary() const {
  std::ostringstream text;
  text << rows << " trials of rows on " << samples
       << " samples: " << wrong.size() << " wrong; " << combinations
       << " other layouts: " << missing.size() << " missing";
  return text.str();
}

const Rule* rule_of_sample(const Sample& sample) {
  const Rule* rule = detail::rule_table().find(sample.op);
  if (rule == nullptr && sample.handle().hasTag(at::Tag::pointwise) &&
      !sample.handle().hasKernelForDispatchKey(
          c10::DispatchKey::CompositeImplicitAutograd)) {
    rule = &detail::pointwise_rule();
  }
  return rule;
}

void validate(
    const Sample& sample,
    const Rule& rule,
    c10::ArrayRef<DeviceMesh> meshes,
    Report& report) {
  const c10::NoGradGuard no_grad;
  Cases cases;
  for (uint64_t seed = 0; seed < kValueSets; ++seed) {
    cases.emplace_back(sample, rule, seed);
  }
  // Rows may depend on nothing but shapes and plain arguments.
  const Rows rows = rule.rows(cases[0].call());
  ++report.samples;
  find_wrong(sample, cases, rows, meshes, report);
  for (const auto& argument : sample.handle().schema().arguments()) {
    if (argument.is_out()) {
      return;  // searched without `out=`, which parts would resize
    }
  }
  if (std::any_of(
          cases[0].output_sizes().begin(),
          cases[0].output_sizes().end(),
          [](const Sizes& sizes) {
            return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
          })) {
    return;  // what has no elements is right in every layout
  }
  find_missing(sample, cases, rows, meshes, report);
}

}  // namespace tessera::testing
