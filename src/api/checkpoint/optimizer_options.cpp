#include "api/checkpoint/optimizer_options.h"

#include <c10/util/Exception.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <charconv>
#include <cmath>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "api/checkpoint/json.h"

namespace tessera::detail {

namespace {

namespace optim = torch::optim;

using Betas = std::tuple<double, double>;
using Option = std::variant<double*, bool*, Betas*>;
using NamedOptions = std::vector<std::pair<const char*, Option>>;

template <typename Options>
NamedOptions adam_options(Options& options) {
  return {
      {"lr", &options.lr()},
      {"betas", &options.betas()},
      {"eps", &options.eps()},
      {"weight_decay", &options.weight_decay()},
      {"amsgrad", &options.amsgrad()}};
}

NamedOptions options_of(optim::OptimizerOptions& options) {
  if (auto* adam = dynamic_cast<optim::AdamOptions*>(&options)) {
    return adam_options(*adam);
  }
  if (auto* adamw = dynamic_cast<optim::AdamWOptions*>(&options)) {
    return adam_options(*adamw);
  }
  if (auto* adagrad = dynamic_cast<optim::AdagradOptions*>(&options)) {
    return {
        {"lr", &adagrad->lr()},
        {"lr_decay", &adagrad->lr_decay()},
        {"weight_decay", &adagrad->weight_decay()},
        {"initial_accumulator_value", &adagrad->initial_accumulator_value()},
        {"eps", &adagrad->eps()}};
  }
  if (auto* rms = dynamic_cast<optim::RMSpropOptions*>(&options)) {
    return {
        {"lr", &rms->lr()},
        {"alpha", &rms->alpha()},
        {"eps", &rms->eps()},
        {"weight_decay", &rms->weight_decay()},
        {"momentum", &rms->momentum()},
        {"centered", &rms->centered()}};
  }
  if (auto* sgd = dynamic_cast<optim::SGDOptions*>(&options)) {
    return {
        {"lr", &sgd->lr()},
        {"momentum", &sgd->momentum()},
        {"dampening", &sgd->dampening()},
        {"weight_decay", &sgd->weight_decay()},
        {"nesterov", &sgd->nesterov()}};
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "[checkpoint] the options of this optimizer are not known: expected "
      "Adam, AdamW, Adagrad, RMSprop or SGD; save its tensors by name instead");
}

// ---- writing ----

// To the bit; JSON has no infinity.
std::string text_of(double value) {
  char buffer[32];
  char* const end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  std::string text(static_cast<const char*>(buffer), end - buffer);
  if (!std::isfinite(value)) return R"({"__float__": ")" + text + "\"}";
  const bool whole = text.find_first_of(".e") == std::string::npos;
  return whole ? text + ".0" : text;
}

std::string text_of(const Option& option) {
  if (const auto* number = std::get_if<double*>(&option)) {
    return text_of(**number);
  }
  if (const auto* flag = std::get_if<bool*>(&option)) {
    return **flag ? "true" : "false";
  }
  const auto& [first, second] = *std::get<Betas*>(option);
  return R"({"__tuple__": [)" + text_of(first) + ", " + text_of(second) + "]}";
}

// ---- reading ----

double number_in(const Json& json, const std::string& where) {
  if (json.kind() != Json::Kind::Object) return json.number(where);
  const auto& text = json.at("__float__", where).string(where);
  double value = 0;
  const auto* end = text.data() + text.size();
  TORCH_CHECK(
      std::from_chars(text.data(), end, value).ptr == end && !text.empty(),
      where,
      " has '",
      text,
      "' in the place of a number");
  return value;
}

void set_option(
    const Option& option, const Json& json, const std::string& where) {
  if (const auto* number = std::get_if<double*>(&option)) {
    **number = number_in(json, where);
  } else if (const auto* flag = std::get_if<bool*>(&option)) {
    **flag = json.boolean(where);
  } else {
    // A list, if the program made it of one.
    const auto& items = json.kind() == Json::Kind::Array
                            ? json.array(where)
                            : json.at("__tuple__", where).array(where);
    TORCH_CHECK(
        items.size() == 2, where, " has ", items.size(), " betas instead of 2");
    *std::get<Betas*>(option) = {
        number_in(items[0], where), number_in(items[1], where)};
  }
}

// The options of one group: pairs of a name and a value.
class SavedGroup {
 public:
  SavedGroup(const Json& json, const std::string& where)
      : items_(json.at("__dict__", where).array(where)), where_(where) {}

  const Json* find(std::string_view name) const {
    for (const auto& item : items_) {
      const auto& pair = item.array(where_);
      TORCH_CHECK(pair.size() == 2, where_, " has an option without a value");
      if (pair[0].kind() == Json::Kind::String &&
          pair[0].string(where_) == name) {
        return &pair[1];
      }
    }
    return nullptr;
  }

  bool updates(const std::string& parameter) const {
    const Json* const params = find("params");
    TORCH_CHECK(params != nullptr, where_, " has a group without parameters");
    for (const auto& name : params->array(where_)) {
      if (name.string(where_) == parameter) return true;
    }
    return false;
  }

 private:
  const std::vector<Json>& items_;
  const std::string& where_;
};

}  // namespace

const std::string& parameter_name(
    const at::Tensor& parameter, const NamesOfParameters& names) {
  const auto found = names.find(parameter.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(
      found != names.end(),
      "[checkpoint] the optimizer has a parameter of shape ",
      parameter.sizes(),
      " that the module does not have: pass the module whose parameters it "
      "updates");
  return found->second;
}

std::string param_groups_text(
    optim::Optimizer& optimizer, const NamesOfParameters& names) {
  std::string text = "[";
  for (auto& group : optimizer.param_groups()) {
    if (text.size() > 1) text += ", ";
    text += R"({"__dict__": [)";
    for (const auto& [name, option] : options_of(group.options())) {
      text += "[" + json_string(name) + ", " + text_of(option) + "], ";
    }
    text += R"(["params", [)";
    for (size_t i = 0; i < group.params().size(); ++i) {
      if (i > 0) text += ", ";
      text += json_string(parameter_name(group.params()[i], names));
    }
    text += "]]]}";
  }
  return text + "]";
}

void restore_param_groups(
    optim::Optimizer& optimizer,
    const NamesOfParameters& names,
    const std::string& text,
    const std::string& where) {
  const auto json = Json::parse(text, where);
  std::vector<SavedGroup> saved;
  for (const auto& group : json.array(where)) saved.emplace_back(group, where);
  for (auto& group : optimizer.param_groups()) {
    if (group.params().empty()) continue;
    const auto& first = parameter_name(group.params()[0], names);
    for (const auto& candidate : saved) {
      if (!candidate.updates(first)) continue;
      for (const auto& [name, option] : options_of(group.options())) {
        if (const Json* const value = candidate.find(name)) {
          set_option(option, *value, where);
        }
      }
      break;
    }
  }
}

}  // namespace tessera::detail
