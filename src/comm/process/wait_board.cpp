#include "comm/process/wait_board.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "comm/process/wait_circle.h"
#include "comm/transport/transport.h"

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;

// How often a rank tells of its waits and looks at those of others: often at
// first, since a circle closes when its last rank begins to wait.
constexpr milliseconds kBeat{6};
constexpr milliseconds kOften{200};
// Later on, and for each 64 ranks: all of them use one store.
constexpr milliseconds kSlowBeat{40};
// How long the end of a world waits for the thread.
constexpr milliseconds kPatience{500};

// A thread that makes calls, for as long as it runs.
struct CallerThread {
  std::shared_ptr<uint64_t> id;

  CallerThread() {
    static std::atomic<uint64_t> last = 0;
    id = std::make_shared<uint64_t>(++last);
  }
};

const std::shared_ptr<uint64_t>& caller_thread() {
  thread_local const CallerThread mine;
  return mine.id;
}

std::string key_of(int64_t rank) { return "waits/" + std::to_string(rank); }

}  // namespace

// Shared with the thread, which may outlive the board in a call of the store.
struct WaitBoard::State {
  struct Waiting {
    RankWait wait;
    Deadline begin = Clock::now();
    std::optional<Verdict> verdict;
    // Of the thread.
    CircleWatch watch;
    std::vector<WaitLink> circle;        // the last that was found
    std::map<int64_t, uint64_t> failed;  // beats at which ranks had failed
  };

  c10::intrusive_ptr<c10d::Store> store;
  int64_t rank = 0;
  int64_t size = 0;

  std::mutex mutex;  // of all that follows
  std::condition_variable changed;
  bool started = false;
  bool running = false;
  bool stop = false;
  bool untold = false;  // the record has changed
  uint64_t last_number = 0;
  uint64_t beat = 0;
  uint64_t told = 0;                  // the last that is in the store
  std::map<uint64_t, Waiting> waits;  // by number
  std::map<std::string, std::unique_ptr<BoardGroup>> groups;
  std::map<std::string, std::vector<std::weak_ptr<uint64_t>>> callers;
  std::vector<std::pair<int64_t, uint64_t>> stuck;
  std::map<std::string, std::string> errors;

  // Only the thread's: ranks of which a record was seen.
  std::set<int64_t> seen;

  // --- with the mutex ---

  void add_caller(const std::string& device) {
    auto& known = callers[device];
    std::erase_if(known, [](const auto& thread) { return thread.expired(); });
    const auto& mine = caller_thread();
    const bool there =
        std::any_of(known.begin(), known.end(), [&](const auto& thread) {
          return thread.lock() == mine;
        });
    if (!there) known.push_back(mine);
  }

  WaitRecord record() {
    WaitRecord out;
    out.beat = ++beat;
    for (const auto& [number, waiting] : waits) {
      out.waits.push_back(waiting.wait);
    }
    for (const auto& [name, group] : groups) {
      out.groups[name] = {group->count.load(), group->thread.load()};
    }
    for (const auto& [device, threads] : callers) {
      auto& ids = out.callers[device];
      for (const auto& thread : threads) {
        if (const auto id = thread.lock()) ids.push_back(*id);
      }
    }
    out.stuck = stuck;
    out.errors = errors;
    return out;
  }

  milliseconds pause() const {
    auto begin = Deadline::min();
    for (const auto& [number, waiting] : waits) {
      if (!waiting.circle.empty()) return kBeat;
      begin = std::max(begin, waiting.begin);
    }
    if (begin + kOften > Clock::now()) return kBeat;
    return kSlowBeat * (1 + size / 64);
  }

  // --- the thread ---

  static void start(const std::shared_ptr<State>& state) {
    if (std::exchange(state->started, true)) return;
    state->running = true;
    try {
      std::thread([state] { state->run(); }).detach();
    } catch (const std::exception&) {
      state->running = false;  // none to be had: the timeout is left
    }
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stop || untold || !waits.empty(); });
      if (stop) break;
      untold = false;
      const auto own = record();
      auto looking = waits;
      lock.unlock();
      try {
        look(own, looking);
      } catch (const std::exception&) {
        // The store is lost. Whoever waits finds its peers lost, too.
        lock.lock();
        break;
      }
      lock.lock();
      for (auto& [number, looked] : looking) {
        const auto found = waits.find(number);
        if (found != waits.end()) found->second = std::move(looked);
      }
      if (!waits.empty()) {
        changed.wait_for(lock, pause(), [&] { return stop || untold; });
      }
    }
    running = false;
    changed.notify_all();
  }

  std::optional<WaitRecord> read(int64_t of) {
    const auto key = key_of(of);
    // To get what is not there would wait for it.
    if (!seen.contains(of)) {
      if (!store->check({key})) return std::nullopt;
      seen.insert(of);
    }
    const auto bytes = store->get(key);
    return WaitRecord::parse({bytes.begin(), bytes.end()});
  }

  void look(const WaitRecord& own, std::map<uint64_t, Waiting>& looking) {
    tell(own);
    std::map<int64_t, std::optional<WaitRecord>> records;
    const auto record_of = [&](int64_t of) -> const WaitRecord* {
      if (of == rank) return &own;
      auto found = records.find(of);
      if (found == records.end()) found = records.emplace(of, read(of)).first;
      return found->second ? &*found->second : nullptr;
    };
    for (auto& [number, waiting] : looking) {
      if (waiting.verdict) continue;
      const auto circle = find_circle(rank, waiting.wait.thread, record_of);
      const bool real = waiting.watch.is_real(circle);
      if (!circle.empty()) waiting.circle = circle;
      if (real || was_told(waiting, record_of)) {
        // The others may not have seen it twice: after an error this rank waits
        // no more.
        std::unique_lock lock(mutex);
        stuck = members_of(waiting.circle);
        const auto final = record();
        lock.unlock();
        tell(final);
        waiting.verdict = {
            waiting.circle[0].wait.awaited[0],
            describe_circle(waiting.circle),
            false};
      } else {
        find_failed(waiting, record_of);
      }
    }
  }

  // Whether an awaited rank has found the circle that this one has seen.
  bool was_told(const Waiting& waiting, RecordOf record_of) const {
    if (waiting.circle.empty()) return false;
    const std::pair<int64_t, uint64_t> me{rank, waiting.wait.number};
    const WaitRecord* const next = record_of(waiting.circle[0].wait.awaited[0]);
    return next != nullptr &&
           std::count(next->stuck.begin(), next->stuck.end(), me) > 0;
  }

  void find_failed(Waiting& waiting, RecordOf record_of) const {
    const auto& wait = waiting.wait;
    const auto before = std::exchange(waiting.failed, {});
    for (const int64_t peer : wait.awaited) {
      const WaitRecord* const record = record_of(peer);
      if (record == nullptr) continue;
      const auto error = record->errors.find(device_of(wait.group));
      if (error == record->errors.end()) continue;
      const auto calls = record->groups.find(wait.group);
      if (calls != record->groups.end() && calls->second.count >= wait.call) {
        continue;  // what it sent is on its way
      }
      waiting.failed[peer] = record->beat;
      // In two looks: it may be about to call another.
      const auto then = before.find(peer);
      if (then == before.end() || then->second != record->beat) continue;
      waiting.verdict = {peer, error->second, true};
      return;
    }
  }

  void tell(const WaitRecord& own) {
    const auto text = own.str();
    store->set(key_of(rank), std::vector<uint8_t>(text.begin(), text.end()));
    const std::lock_guard lock(mutex);
    told = own.beat;
    changed.notify_all();
  }
};

WaitBoard::WaitBoard(
    c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size)
    : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
  state_->rank = rank;
  state_->size = size;
}

WaitBoard::~WaitBoard() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [&] { return !state_->running; });
}

uint64_t WaitBoard::this_thread() { return *caller_thread(); }

BoardGroup& WaitBoard::join(const std::string& group) {
  const std::lock_guard lock(state_->mutex);
  auto& joined = state_->groups[group];
  if (!joined) joined = std::make_unique<BoardGroup>();
  joined->name = group;
  joined->count = 0;
  joined->thread = 0;
  return *joined;
}

void WaitBoard::note_call(BoardGroup& group) {
  std::unique_lock lock(state_->mutex);
  const auto device = device_of(group.name);
  state_->add_caller(device);
  group.thread = this_thread();
  if (state_->errors.erase(device) == 0) return;
  failed_ = !state_->errors.empty();
  state_->untold = true;
  state_->changed.notify_all();
  // From here on nobody may take this rank for one that has failed.
  const uint64_t due = state_->beat + 1;
  state_->changed.wait_for(
      lock, kPatience, [&] { return !state_->running || state_->told >= due; });
}

void WaitBoard::fail(const BoardGroup& group, const std::string& error) {
  const std::lock_guard lock(state_->mutex);
  state_->errors[device_of(group.name)] = error;
  failed_ = true;
  state_->untold = true;
  State::start(state_);
  state_->changed.notify_all();
}

WaitBoard::LongWait::LongWait(
    WaitBoard& board,
    const BoardGroup& group,
    uint32_t call,
    const char* collective,
    std::vector<int64_t> awaited)
    : board_(board) {
  auto& state = *board.state_;
  const std::lock_guard lock(state.mutex);
  number_ = ++state.last_number;
  state.add_caller(device_of(group.name));
  state.waits[number_].wait = {
      this_thread(), number_, group.name, call, collective, std::move(awaited)};
  state.untold = true;
  State::start(board.state_);
  state.changed.notify_all();
}

WaitBoard::LongWait::~LongWait() {
  const std::lock_guard lock(board_.state_->mutex);
  board_.state_->waits.erase(number_);
}

std::optional<WaitBoard::Verdict> WaitBoard::LongWait::verdict() const {
  const std::lock_guard lock(board_.state_->mutex);
  return board_.state_->waits.at(number_).verdict;
}

}  // namespace tessera::detail
