// tessera-ops: how each op of ATen is carried out on distributed tensors.
//
//   tessera-ops                 prints the table
//   tessera-ops --update FILE   writes it into a page, below its marker
//   tessera-ops --check FILE    fails where the page is not current
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

#include "dispatch/op_registry.h"
#include "testing/samples.h"
#include "testing/validator.h"
#include "testing/validator_case.h"

namespace tessera {

namespace {

using detail::OpKind;

constexpr std::string_view kMarker = "<!-- tessera-ops -->\n";

// All overloads of a name, in place or not, and with `out`.
struct Op {
  OpKind kind = OpKind::kRefused;
  size_t rows = 0;  // of the sample that has most
  size_t samples = 0;
};

// "aten::add_.Tensor" is a variant of "aten::add".
std::string base_name(const c10::OperatorName& name) {
  auto base = name.name;
  const bool is_private =
      base.size() > 2 && base.substr(base.size() - 2) == "__";
  if (base.back() == '_' && !is_private) {
    base.pop_back();
  }
  return base;
}

using Ops = std::map<std::string, Op>;

Ops all_ops() {
  Ops ops;
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto& registry = detail::OpRegistry::instance();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto handle = dispatcher.findSchema(name);
    if (!handle.has_value() ||
        (name.getNamespace() != "aten" && name.getNamespace() != "tessera")) {
      continue;
    }
    const auto& arguments = handle->schema().arguments();
    const bool has_tensor = std::any_of(
        arguments.begin(), arguments.end(), [](const auto& argument) {
          return argument.type()->str().find("Tensor") != std::string::npos;
        });
    if (has_tensor) {
      auto& op = ops[base_name(name)];
      // That of the overload that is served best.
      op.kind = std::min(op.kind, registry.kind(*handle));
    }
  }
  for (const auto& sample : testing::all_samples()) {
    auto& op = ops[base_name(sample.handle().operator_name())];
    ++op.samples;
    if (const Rule* rule = testing::rule_of_sample(sample);
        rule != nullptr && op.kind == OpKind::kRule) {
      const testing::Case one(sample, *rule, /*seed=*/0);
      op.rows = std::max(op.rows, rule->rows(one.call()).size());
    }
  }
  return ops;
}

std::string names_of(const Ops& ops, OpKind kind) {
  std::string text;
  for (const auto& [name, op] : ops) {
    if (op.kind == kind) {
      text += (text.empty() ? "`" : ", `") + name.substr(6) + "`";
    }
  }
  return text + "\n";
}

std::string table() {
  const auto ops = all_ops();
  std::map<OpKind, int> counts;
  std::ostringstream text;
  for (const auto& [name, op] : ops) {
    ++counts[op.kind];
  }
  text << "Made by `tessera-ops`. Names without a namespace are ATen's; "
          "in-place "
          "and `out=` variants are counted with their op.\n\n"
       << "| kind | ops |\n|---|---|\n";
  for (const auto& [kind, count] : counts) {
    text << "| " << to_string(kind) << " | " << count << " |\n";
  }
  text << "\nRows are those of the sample that has most, besides the one that "
          "replicates all.\n\n"
       << "| op | kind | rows | samples |\n|---|---|---|---|\n";
  for (const auto& [name, op] : ops) {
    const bool own = op.kind == OpKind::kOwnKernel ||
                     (op.kind == OpKind::kComposition && op.samples > 0);
    if (op.kind != OpKind::kRule && !own) {
      continue;
    }
    const auto shown = name.substr(0, 6) == "aten::" ? name.substr(6) : name;
    text << "| `" << shown << "` | " << to_string(op.kind) << " | "
         << (op.rows == 0 ? std::string() : std::to_string(op.rows)) << " | "
         << op.samples << " |\n";
  }
  Ops composed;
  for (const auto& [name, op] : ops) {
    if (op.kind == OpKind::kComposition && op.samples == 0) {
      composed.emplace(name, op);
    }
  }
  text << "\n### Composed by ATen of the ops above\n\n"
       << names_of(composed, OpKind::kComposition)
       << "\n### On gathered inputs\n\n"
       << names_of(ops, OpKind::kGathered) << "\n### Refused\n\n"
       << names_of(ops, OpKind::kRefused);
  return text.str();
}

std::string read(const char* path) {
  std::ifstream file(path);
  TORCH_CHECK(file, "[tessera-ops] cannot read ", path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The page with a current table.
std::string with_table(const std::string& page, const char* path) {
  const auto marker = page.find(kMarker);
  TORCH_CHECK(
      marker != std::string::npos,
      "[tessera-ops] ",
      path,
      " has no line ",
      kMarker);
  return page.substr(0, marker + kMarker.size()) + "\n" + table();
}

int run(int argc, char** argv) {
  const std::string_view option = argc == 3 ? argv[1] : "";
  if (argc == 1) {
    std::cout << table();
    return 0;
  }
  if (option == "--update") {
    const auto page = with_table(read(argv[2]), argv[2]);
    std::ofstream(argv[2]) << page;
    return 0;
  }
  if (option == "--check") {
    const auto page = read(argv[2]);
    const bool current = page == with_table(page, argv[2]);
    if (!current) {
      std::cerr << "[tessera-ops] " << argv[2]
                << " is not current: run tessera-ops --update on it\n";
    }
    return current ? 0 : 1;
  }
  std::cerr << "usage: tessera-ops [--update FILE | --check FILE]\n";
  return 2;
}

}  // namespace

}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
