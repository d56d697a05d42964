// tessera-checkpoint: looks into checkpoints, and makes others of them.
//
//   tessera-checkpoint inspect DIR              what is there, and is it whole
//   tessera-checkpoint reshard DIR --ranks N    the same, in N files
//   tessera-checkpoint merge DIR file.safetensors [--prefix model.]
//                                                 [--max-bytes 5000000000]
//
// DIR is a checkpoint (run/step_100) or the directory of a run.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <tessera/checkpoint.h>
#include <tessera/distribute.h>
#include <tessera/world.h>

#include <charconv>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

namespace {

namespace ts = tessera;
namespace fs = std::filesystem;

constexpr const char* kUsage =
    "usage: tessera-checkpoint inspect DIR\n"
    "       tessera-checkpoint reshard DIR --ranks N [--out RUN]\n"
    "       tessera-checkpoint merge DIR FILE.safetensors [--prefix PREFIX] "
    "[--max-bytes N]\n";

struct Arguments {
  std::vector<std::string> positional;
  int64_t ranks = 0;
  std::string out;
  ts::MergeOptions merge;
};

// A number, 1 or more.
bool read_number(const std::string& text, int64_t& number) {
  const auto* end = text.data() + text.size();
  return std::from_chars(text.data(), end, number).ptr == end && number >= 1;
}

// Nullopt: the command line is wrong.
std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    if (!text.starts_with("--")) {
      arguments.positional.push_back(text);
      continue;
    }
    if (++i == argc) return std::nullopt;
    const std::string value = argv[i];
    if (text == "--ranks") {
      if (!read_number(value, arguments.ranks)) return std::nullopt;
    } else if (text == "--max-bytes") {
      if (!read_number(value, arguments.merge.max_file_bytes)) {
        return std::nullopt;
      }
    } else if (text == "--out") {
      arguments.out = value;
    } else if (text == "--prefix") {
      arguments.merge.prefix = value;
    } else {
      return std::nullopt;
    }
  }
  return arguments;
}

// The newest of a run, or the checkpoint itself.
std::string checkpoint_at(const std::string& path) {
  const auto all = ts::checkpoints_in(path);
  return all.empty() ? path : all[0];
}

std::string in_units(double bytes) {
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = next;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g %s", bytes, unit);
  return text;
}

// Reads every byte. False where something is wrong.
bool inspect(const std::string& path) {
  std::cout << path << "\n";
  try {
    const auto info = ts::checkpoint_info(path);
    std::cout << "  step " << info.step << ", saved by " << info.ranks
              << (info.ranks == 1 ? " rank\n" : " ranks\n");
    double total = 0;
    for (const auto& [name, tensor] : info.tensors) {
      double bytes = static_cast<double>(c10::elementSize(tensor.dtype));
      for (const int64_t size : tensor.shape) {
        bytes *= static_cast<double>(size);
      }
      total += bytes;
      std::cout << "  " << std::left << std::setw(40) << name << " "
                << std::setw(10) << c10::toString(tensor.dtype) << " "
                << std::setw(16) << c10::str(c10::IntArrayRef(tensor.shape))
                << " " << std::setw(12) << in_units(bytes) << tensor.layout
                << "\n";
    }
    for (const auto& [name, value] : info.values) {
      std::cout << "  " << name << " = " << value.substr(0, 60) << "\n";
    }
    // One tensor at a time: whatever its size, little memory is in use.
    for (const auto& [name, tensor] : info.tensors) {
      ts::load_plain(path, {.names = {name}, .mmap = true});
    }
    std::cout << "  " << info.tensors.size() << " tensors, " << in_units(total)
              << ", whole\n";
    return true;
  } catch (const c10::Error& error) {
    std::cout << "  NOT WHOLE: " << error.what_without_backtrace() << "\n";
    return false;
  }
}

bool inspect_all(const std::string& path) {
  const auto all = ts::checkpoints_in(path);
  if (all.empty()) return inspect(path);
  bool whole = true;
  for (const auto& checkpoint : all) {
    // A run that goes on removes what it does not keep.
    if (inspect(checkpoint) || !fs::exists(checkpoint)) continue;
    whole = false;
  }
  return whole;
}

// Rows are spread over the ranks, where there are any.
void reshard(const std::string& path, int64_t ranks, const std::string& out) {
  const auto info = ts::checkpoint_info(path);
  const auto world = ts::World::simulate(ranks);
  const auto mesh = ts::init_device_mesh("cpu", {ranks});
  ts::TensorMap spread;
  for (const auto& [name, tensor] : info.tensors) {
    const auto placement =
        tensor.shape.empty() ? ts::Placement(ts::Replicate()) : ts::Shard(0);
    spread[name] = ts::empty(tensor.shape, mesh, {placement}, tensor.dtype);
  }
  // The generators go with it.
  ts::load(path, spread, {.generators = true});
  ts::SaveOptions options;
  options.step = info.step;
  options.values = info.values;
  options.newest = false;
  const auto root =
      out.empty() ? fs::absolute(path).parent_path().string() : out;
  std::cout << ts::save(root, spread, options) << "\n";
}

int run(const Arguments& arguments) {
  const auto& words = arguments.positional;
  if (words.size() == 2 && words[0] == "inspect") {
    return inspect_all(words[1]) ? 0 : 1;
  }
  if (words.size() == 2 && words[0] == "reshard" && arguments.ranks > 0) {
    reshard(checkpoint_at(words[1]), arguments.ranks, arguments.out);
    return 0;
  }
  if (words.size() == 3 && words[0] == "merge") {
    for (const auto& file :
         ts::merge(checkpoint_at(words[1]), words[2], arguments.merge)) {
      std::cout << file << "\n";
    }
    return 0;
  }
  std::cerr << kUsage;
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = parse(argc, argv);
  if (!arguments) {
    std::cerr << kUsage;
    return 2;
  }
  try {
    return run(*arguments);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
  }
  return 1;
}
