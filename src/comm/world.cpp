#include "tessera/world.h"
#include "core/leaked.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "comm/process/environment.h"
#include "comm/process/process_collectives.h"
#include "comm/process/world_store.h"
#include "comm/simulated.h"
#include "comm/world_end.h"
#include "comm/world_state.h"

namespace tessera {

namespace detail {

namespace {

using StatePtr = std::shared_ptr<WorldState>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

struct Worlds {
  std::shared_mutex mutex;
  // The innermost scope is the last.
  std::vector<StatePtr> entered;
};

Worlds& worlds() { return leaked<Worlds>(); }

// Requires: the lock is held.
void publish_innermost(const Worlds& all) {
  if (all.entered.empty()) {
    set_current_process_context(std::nullopt);
  } else {
    set_current_process_context(all.entered.back()->process_context);
  }
}

uint64_t next_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

void enter(const StatePtr& state) {
  auto& all = worlds();
  const std::unique_lock lock(all.mutex);
  all.entered.push_back(state);
  publish_innermost(all);
}

// Scopes may end in any order; the last of those left is the innermost.
void leave(const StatePtr& state) {
  auto& all = worlds();
  const std::unique_lock lock(all.mutex);
  const auto found = std::find(all.entered.begin(), all.entered.end(), state);
  if (found != all.entered.end()) all.entered.erase(found);
  publish_innermost(all);
}

StatePtr make_simulated(int64_t ranks) {
  auto state = std::make_shared<WorldState>(
      ProcessContext{next_id(), ranks, /*rank=*/-1}, WorldOptions{}.timeout);
  state->collectives = make_simulated_collectives();
  return state;
}

void check_processes(const WorldOptions& options, const char* caller) {
  TORCH_CHECK_VALUE(
      options.timeout.count() > 0,
      "[",
      caller,
      "] the timeout must be positive but is ",
      options.timeout.count(),
      " ms");
}

void check_rank(int64_t rank, int64_t size) {
  TORCH_CHECK_VALUE(
      size >= 1 && rank >= 0 && rank < size,
      "[World::connect] expected a rank from 0 to ",
      size - 1,
      " of a world of ",
      size,
      " but ",
      rank,
      " was given");
}

StatePtr make_processes(
    Launch launch, StorePtr store, std::chrono::milliseconds timeout) {
  auto state = std::make_shared<WorldState>(
      ProcessContext{next_id(), launch.size, launch.rank}, timeout);
  auto processes = std::make_unique<ProcessCollectives>(
      std::move(launch),
      std::move(store),
      state->timeout,
      ProcessCollectives::Options{});
  state->processes = processes.get();
  state->collectives = std::move(processes);
  return state;
}

StatePtr make_processes(
    Launch launch, const WorldOptions& options, const char* caller) {
  check_processes(options, caller);
  if (!options.job.empty()) launch.job = options.job;
  auto store = meet_at_address(launch, options.timeout, caller);
  return make_processes(std::move(launch), std::move(store), options.timeout);
}

StatePtr make_processes(
    Launch launch, const StorePtr& store, const WorldOptions& options) {
  launch.job = options.job;
  auto own = meet_in_store(launch, store, options.timeout);
  return make_processes(std::move(launch), std::move(own), options.timeout);
}

}  // namespace

WorldState::WorldState(
    ProcessContext process_context, std::chrono::milliseconds timeout)
    : process_context(process_context), timeout(timeout) {}

WorldState::~WorldState() = default;

Collectives& collectives(const DeviceMesh& mesh) {
  auto& all = worlds();
  const std::shared_lock lock(all.mutex);
  for (auto it = all.entered.rbegin(); it != all.entered.rend(); ++it) {
    if ((*it)->process_context.world_id == mesh.world_id()) {
      return *(*it)->collectives;
    }
  }
  TORCH_CHECK(
      false,
      "[World] the world in which ",
      mesh.str(),
      " was made has ended; keep the World object alive for as long as its "
      "meshes and distributed tensors communicate");
}

}  // namespace detail

World World::simulate(int64_t ranks) {
  TORCH_CHECK_VALUE(
      ranks >= 1,
      "[World::simulate] expected at least one rank but ",
      ranks,
      " were given");
  return World(detail::make_simulated(ranks));
}

World World::from_environment(
    int64_t otherwise_simulate, WorldOptions options) {
  auto launch = detail::read_environment();
  if (!launch) {
    TORCH_CHECK_VALUE(
        otherwise_simulate >= 1,
        "[World::from_environment] no launcher has started this process, and ",
        otherwise_simulate,
        " ranks cannot be simulated; give at least 1");
    return World(detail::make_simulated(otherwise_simulate));
  }
  return World(detail::make_processes(
      std::move(*launch), options, "World::from_environment"));
}

World World::connect(
    int64_t rank,
    int64_t size,
    const std::string& address,
    uint16_t port,
    WorldOptions options) {
  detail::check_rank(rank, size);
  detail::Launch launch;
  launch.rank = rank;
  launch.size = size;
  launch.address = address;
  launch.port = port;
  return World(
      detail::make_processes(std::move(launch), options, "World::connect"));
}

World World::connect(
    int64_t rank,
    int64_t size,
    const c10::intrusive_ptr<c10d::Store>& store,
    WorldOptions options) {
  TORCH_CHECK_TYPE(
      store.defined(), "[World::connect] expected a store, got a null pointer");
  detail::check_rank(rank, size);
  detail::check_processes(options, "World::connect");
  detail::Launch launch;
  launch.rank = rank;
  launch.size = size;
  return World(detail::make_processes(std::move(launch), store, options));
}

World::World(std::shared_ptr<detail::WorldState> state)
    : state_(std::move(state)) {
  detail::enter(state_);
}

World::World(World&& other) noexcept = default;

World::~World() {
  if (!state_) return;
  detail::run_world_end_hooks();
  detail::leave(state_);
}

int64_t World::size() const { return state_->process_context.world_size; }

bool World::simulated() const { return state_->process_context.simulated(); }

int64_t World::rank() const {
  return simulated() ? 0 : state_->process_context.rank;
}

void World::set_timeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(
      timeout.count() > 0,
      "[World::set_timeout] the timeout must be positive but is ",
      timeout.count(),
      " ms");
  state_->timeout = timeout;
}

std::chrono::milliseconds World::timeout() const { return state_->timeout; }

void World::barrier() {
  if (state_->processes != nullptr) state_->processes->barrier();
}

bool in_world() { return detail::current_process_context().has_value(); }

int64_t world_size() {
  const auto process_context = detail::current_process_context();
  TORCH_CHECK(
      process_context.has_value(), "[world_size] no World has been entered");
  return process_context->world_size;
}

}  // namespace tessera
