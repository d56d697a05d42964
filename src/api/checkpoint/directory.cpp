#include "api/checkpoint/directory.h"

#include <c10/util/Exception.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/system_calls.h"

namespace tessera::detail {

namespace {

namespace fs = std::filesystem;

// A name in the directory of a run: "step_12", "step_12.tmp-...".
struct StepName {
  int64_t step;
  std::string rest;  // "" or what begins with a dot
};

std::optional<StepName> parse_step(std::string_view name) {
  constexpr std::string_view kPrefix = "step_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  StepName out{};
  const auto* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data(), end, out.step);
  if (parsed.ec != std::errc() || out.step < 0) return std::nullopt;
  out.rest.assign(parsed.ptr, end);
  // Only what this library writes: no "step_01" beside "step_1".
  const auto digits = static_cast<size_t>(parsed.ptr - name.data());
  if (std::to_string(out.step).size() != digits) return std::nullopt;
  if (!out.rest.empty() && out.rest[0] != '.') return std::nullopt;
  return out;
}

struct Found {
  std::string path;
  StepName name;
};

std::vector<Found> entries_of(const std::string& root) {
  std::vector<Found> out;
  std::error_code error;
  fs::directory_iterator it(root, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const auto name = parse_step(it->path().filename().string());
    if (name) out.push_back({it->path().string(), *name});
  }
  return out;
}

std::string beside(
    const std::string& root, int64_t step, const char* kind, uint64_t id) {
  return step_path(root, step) + kind + hex16(id);
}

// A directory that is half removed must not look like a checkpoint.
void discard(const std::string& root, int64_t step, uint64_t id) {
  const auto away = beside(root, step, ".tmp-removed-", id);
  rename_path(step_path(root, step), away);
  remove_tree(away);
}

}  // namespace

std::string step_path(const std::string& root, int64_t step) {
  return root + "/step_" + std::to_string(step);
}

std::string unfinished_path(
    const std::string& root, int64_t step, uint64_t id) {
  return beside(root, step, ".tmp-", id);
}

std::vector<int64_t> steps_in(const std::string& root) {
  std::vector<int64_t> steps;
  for (const auto& found : entries_of(root)) {
    if (found.name.rest.empty()) steps.push_back(found.name.step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

SaveLock::SaveLock(const std::string& root) {
  const auto path = root + "/.lock";
  fd_ = system_calls().open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_errno("open", path);
  if (system_calls().lock(fd_) == 0) return;
  const int error = errno;
  system_calls().close(fd_);
  errno = error;
  TORCH_CHECK(
      error != EWOULDBLOCK,
      "[save] another process is saving in ",
      root,
      " (it holds ",
      path,
      "): wait for it, or save elsewhere");
  throw_errno("lock", path);
}

SaveLock::~SaveLock() { system_calls().close(fd_); }

void make_root(const std::string& root) {
  std::vector<fs::path> missing;
  for (auto path = fs::absolute(root); !fs::exists(path);
       path = path.parent_path()) {
    // A slash at the end leaves an empty name.
    if (path.has_filename()) missing.push_back(path);
    if (path == path.parent_path()) break;
  }
  for (auto it = missing.rbegin(); it != missing.rend(); ++it) {
    make_directory(it->string());
    sync_directory(it->parent_path().string());
  }
  TORCH_CHECK_VALUE(
      fs::is_directory(root), "[save] ", root, " is not a directory");
}

void recover(const std::string& root) {
  for (const auto& found : entries_of(root)) {
    if (!found.name.rest.starts_with(".old-")) continue;
    const auto path = step_path(root, found.name.step);
    if (!fs::exists(path)) rename_path(found.path, path);
  }
}

void remove_leftovers(const std::string& root) {
  for (const auto& found : entries_of(root)) {
    const auto& rest = found.name.rest;
    if (rest.starts_with(".tmp-") || rest.starts_with(".old-")) {
      remove_tree(found.path);
    }
  }
}

void publish(const std::string& root, int64_t step, uint64_t id) {
  const auto from = unfinished_path(root, step, id);
  const auto to = step_path(root, step);
  if (!fs::exists(to)) {
    rename_path(from, to);
    sync_directory(root);
    return;
  }
  if (system_calls().exchange(from.c_str(), to.c_str()) == 0) {
    sync_directory(root);
    remove_tree(from);
    return;
  }
  if (errno != ENOSYS && errno != EINVAL) throw_errno("replace", to);
  // In two steps; recover() undoes the first where the second never came.
  const auto old = beside(root, step, ".old-", id);
  rename_path(to, old);
  sync_directory(root);
  rename_path(from, to);
  sync_directory(root);
  remove_tree(old);
}

void remove_old(const std::string& root, int64_t keep, int64_t step) {
  if (keep <= 0) return;
  int64_t kept = 1;
  for (const int64_t other : steps_in(root)) {
    if (other == step || kept++ < keep) continue;
    discard(root, other, static_cast<uint64_t>(step));
  }
}

}  // namespace tessera::detail
