#include "api/checkpoint/directory.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "api/checkpoint/checksum.h"
#include "api/checkpoint/source.h"
#include "api/checkpoint/system_calls.h"
#include "comm/fork.h"
#include "core/leaked.h"

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

bool operator==(const Found& a, const Found& b) { return a.path == b.path; }

std::vector<Found> list_once(const std::string& root) {
  std::vector<Found> out;
  std::error_code error;
  fs::directory_iterator it(root, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const auto name = parse_step(it->path().filename().string());
    if (name) out.push_back({it->path().string(), *name});
  }
  std::sort(out.begin(), out.end(), [](const Found& a, const Found& b) {
    return a.name.step != b.name.step ? a.name.step < b.name.step
                                      : a.name.rest < b.name.rest;
  });
  return out;
}

// By step. A directory that changes while it is listed may show neither of two
// names that are there one after the other, so it is listed again until it says
// the same twice.
std::vector<Found> entries_of(const std::string& root) {
  constexpr int kMostListings = 100;
  auto out = list_once(root);
  for (int i = 1; i < kMostListings; ++i) {
    auto again = list_once(root);
    if (again == out) break;
    out = std::move(again);
  }
  return out;
}

// The locks that this process holds. A forked child has the same descriptors,
// and a lock is free only when the last of them is closed: the child closes
// its own at once. A lock is taken under the mutex, so that no fork comes
// between.
struct HeldLocks {
  std::mutex mutex;
  std::vector<int> descriptors;
};

HeldLocks& held_locks() { return leaked<HeldLocks>(); }

[[maybe_unused]] const int at_forks = pthread_atfork(
    [] { held_locks().mutex.lock(); },
    [] { held_locks().mutex.unlock(); },
    [] {
      for (const int fd : held_locks().descriptors) ::close(fd);
      held_locks().descriptors.clear();
      held_locks().mutex.unlock();
    });

// ".old-" and an id.
bool is_moved_away(std::string_view rest) {
  constexpr std::string_view kOld = ".old-";
  uint64_t id = 0;
  return rest.starts_with(kOld) && parse_hex16(rest.substr(kOld.size()), id);
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

std::vector<SavedDirectory> checkpoints_of(const std::string& root) {
  std::vector<SavedDirectory> out;
  const auto entries = entries_of(root);
  for (const auto& [path, name] : entries) {
    const auto& rest = name.rest;
    // What a replacement has moved away comes after what took its place.
    const bool needed =
        rest.empty() ||
        (is_moved_away(rest) && (out.empty() || out.back().step != name.step));
    if (!needed) continue;
    const int64_t before = out.empty() ? 0 : out.back().saved;
    out.push_back({path, name.step, saved_number(path).value_or(before)});
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.saved < b.saved;
  });
  std::reverse(out.begin(), out.end());
  return out;
}

SaveLock::SaveLock(const std::string& root) : forks_(fork_count()) {
  const auto path = root + "/.lock";
  const std::lock_guard<std::mutex> guard(held_locks().mutex);
  fd_ = system_calls().open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_errno("open", path);
  if (system_calls().lock(fd_) == 0) {
    held_locks().descriptors.push_back(fd_);
    return;
  }
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

SaveLock::~SaveLock() {
  if (forks_ != fork_count()) return;
  const std::lock_guard<std::mutex> guard(held_locks().mutex);
  std::erase(held_locks().descriptors, fd_);
  // Whoever else has the descriptor does not keep the lock.
  system_calls().unlock(fd_);
  system_calls().close(fd_);
}

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
    if (!is_moved_away(found.name.rest)) continue;
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
  for (const auto& other : checkpoints_of(root)) {
    if (other.step == step || kept++ < keep) continue;
    discard(root, other.step, static_cast<uint64_t>(step));
  }
}

}  // namespace tessera::detail
