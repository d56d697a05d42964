// A input to the chooser, built step by step: Asked("aten::mm", "", {4})
// .in({8, 4}, "[S(0)]").in({4, 2}, "[R]").out({8, 2}).ask(rows) gives
// "[S(0)], [R] -> [S(0)]".
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "plan/propagate.h"
#include "tests/core/scoped_process_context.h"

namespace tessera::detail {

class Asked {
 public:
  // An op of ATen's, called on a mesh of this shape in a world just as large.
  Asked(
      const char* name,
      const char* overload,
      const std::vector<int64_t>& mesh_shape)
      : world_(std::accumulate(
            mesh_shape.begin(),
            mesh_shape.end(),
            int64_t{1},
            std::multiplies<>())),
        mesh_(init_device_mesh("cpu", mesh_shape)),
        schema_(c10::Dispatcher::singleton()
                    .findSchemaOrThrow(name, overload)
                    .schema()),
        arguments_(schema_.arguments().size()) {}

  // A tensor argument.
  Asked& in(const std::vector<int64_t>& sizes, const Placements& placements) {
    return add(
        Spec::make(mesh_, placements, sizes, c10::ScalarType::Float), false);
  }
  Asked& in(const std::vector<int64_t>& sizes, const std::string& placements) {
    return in(sizes, parse_placements(placements));
  }
  // One that the op writes and returns.
  Asked& written(
      const std::vector<int64_t>& sizes, const std::string& placements) {
    written_by_output_.push_back(static_cast<int64_t>(inputs_.size()));
    output_sizes_.emplace_back(sizes.begin(), sizes.end());
    return add(
        Spec::make(
            mesh_, parse_placements(placements), sizes, c10::ScalarType::Float),
        true);
  }
  // An optional one that is not given.
  Asked& absent() { return add(nullptr, false); }
  // A result.
  Asked& out(const std::vector<int64_t>& sizes) {
    written_by_output_.push_back(-1);
    output_sizes_.emplace_back(sizes.begin(), sizes.end());
    return *this;
  }

  // "inputs -> outputs", as chosen.
  std::string ask(const Rows& rows) {
    with_input(
        [&](const PropagationInput& input) { choice_ = choose(input, rows); });
    return text(choice_.inputs) + " -> " + text(choice_.outputs);
  }
  std::string explain(const Rows& rows) {
    std::string explained;
    with_input([&](const PropagationInput& input) {
      explained = explain_propagation(input, rows);
    });
    return explained;
  }
  // The cost of the last choice.
  double cost() const { return choice_.cost; }
  const SpecPtr& spec(size_t index) const { return inputs_[index]; }
  const DeviceMesh& mesh() const { return mesh_; }

  // Calls `use` with the input as it stands.
  template <typename Use>
  void with_input(Use&& use) const {
    std::vector<TensorArg> tensors;
    for (const SpecPtr& spec : inputs_) {
      TensorArg tensor;
      if (spec != nullptr) {
        tensor = {spec->sizes, spec->strides, spec->dtype, true};
      }
      tensors.push_back(std::move(tensor));
    }
    const OpCall call(schema_, arguments_, std::move(tensors));
    use(PropagationInput{
        call, mesh_, inputs_, output_sizes_, written_by_output_, written_});
  }

  // Forgets arguments and results.
  void clear() {
    inputs_.clear();
    output_sizes_.clear();
    written_by_output_.clear();
    written_.clear();
    choice_ = {};
  }

 private:
  Asked& add(SpecPtr spec, bool written) {
    inputs_.push_back(std::move(spec));
    written_.push_back(written);
    return *this;
  }

  static std::string text(const std::vector<Placements>& all) {
    std::string text;
    for (const Placements& placements : all) {
      text += (text.empty() ? "" : ", ") + to_string(placements);
    }
    return text;
  }

  ScopedProcessContext world_;
  DeviceMesh mesh_;
  const c10::FunctionSchema& schema_;
  std::vector<c10::IValue> arguments_;
  std::vector<SpecPtr> inputs_;
  std::vector<Sizes> output_sizes_;
  std::vector<int64_t> written_by_output_;
  c10::SmallVector<bool, 4> written_;
  PropagationResult choice_;
};

}  // namespace tessera::detail
