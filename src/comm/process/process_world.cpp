// The life of a world of processes, and its groups.
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <exception>
#include <new>
#include <numeric>
#include <utility>

#include "comm/blocking_scope.h"
#include "comm/drawn.h"
#include "comm/errors.h"
#include "comm/fork.h"
#include "comm/process/bounded.h"
#include "comm/process/gloo.h"
#include "comm/process/process_collectives.h"
#include "comm/process/rendezvous.h"
#include "core/hash.h"
#include "tessera/process_group.h"

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// How long rank 0 keeps the store for the others when its world ends.
constexpr milliseconds kClosingTime{10000};

// Says that this rank needs the store no more, and on the rank that serves it
// waits until nobody does.
void close_store(
    const StorePtr& store, int64_t rank, int64_t size, milliseconds patience) {
  const auto key = [](int64_t r) { return "closed/" + std::to_string(r); };
  store->set(key(rank), std::vector<uint8_t>{1});
  if (rank != 0) return;
  std::vector<std::string> keys;
  for (int64_t r = 0; r < size; ++r) keys.push_back(key(r));
  store->wait(keys, patience);
}

template <typename T>
void leave_in_memory(T value) {
  static_cast<void>(new (std::nothrow) T(std::move(value)));
}

}  // namespace

ProcessCollectives::ProcessCollectives(
    Launch launch,
    StorePtr store,
    const std::atomic<milliseconds>& timeout,
    Options options)
    : launch_(std::move(launch)),
      store_(std::move(store)),
      timeout_(timeout),
      options_(std::move(options)),
      board_(std::make_shared<WaitBoard>(store_, launch_.rank, launch_.size)),
      forks_(fork_count()),
      exceptions_(std::uncaught_exceptions()) {}

ProcessCollectives::~ProcessCollectives() {
  if (forks_ != fork_count()) {
    // The connections are the parent's, and so is the right to end them. Their
    // memory is left alone.
    leave_in_memory(std::move(groups_));
    leave_in_memory(store_);
    leave_in_memory(board_);
    return;
  }
  // Ranks that are lost do not come to say goodbye.
  const bool broken =
      std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) {
        const auto& group = entry.second.group;
        return group != nullptr && !group->error().empty();
      });
  groups_.clear();
  board_.reset();
  if (launch_.served_by_launcher) return;
  // Only rank 0, which serves the store, waits for others.
  const bool waits =
      launch_.rank == 0 && !broken && std::uncaught_exceptions() <= exceptions_;
  const auto patience =
      waits ? std::min(timeout_.load(), kClosingTime) : milliseconds(1);
  try {
    within<int>(
        until_given_up(patience),
        [store = store_, rank = launch_.rank, size = launch_.size, patience] {
          close_store(store, rank, size, patience);
          return 0;
        });
  } catch (const std::exception&) {
    return;  // The store has gone before us, or a rank does not come.
  }
}

void ProcessCollectives::check_process(const char* caller) const {
  TORCH_CHECK(
      forks_ == fork_count(),
      "[",
      caller,
      "] this process was forked from rank ",
      launch_.rank,
      " after its World was made, and the connections to other ranks are that "
      "rank's; make a World in the child, or start processes by spawn instead "
      "of fork");
}

ProcessCollectives::Key ProcessCollectives::key_of(MeshDim at) {
  const auto all = at.mesh.all_ranks();
  Key key{at.mesh.device_type(), {}};
  for (const int64_t position :
       at.mesh.group(at.mesh.local_positions()[0], at.dim)) {
    key.ranks.push_back(all[position]);
  }
  return key;
}

Call ProcessCollectives::call(
    CollectiveKind collective, MeshDim at, const at::Tensor& shard) const {
  Call call{collective, &at.mesh, at.dim, timeout_.load()};
  call.bytes = static_cast<int64_t>(shard.nbytes());
  return call;
}

GroupRequest ProcessCollectives::request(
    const char* what, const Key& key, milliseconds timeout) {
  std::string prefix = what + ("/" + key.device_type);
  for (const int64_t rank : key.ranks) prefix += "," + std::to_string(rank);
  const auto me = std::find(key.ranks.begin(), key.ranks.end(), launch_.rank);
  TORCH_INTERNAL_ASSERT(me != key.ranks.end());
  store_->setTimeout(c10d_timeout(timeout));
  return {
      (key.device_type.empty() ? "world" : key.device_type) + " " +
          c10::str(c10::ArrayRef<int64_t>(key.ranks)),
      c10::make_intrusive<c10d::PrefixStore>(prefix, store_),
      key.ranks,
      me - key.ranks.begin(),
      options_.host,
      launch_.address,
      timeout};
}

ProcessCollectives::Entry& ProcessCollectives::entry(const Key& key) {
  const std::lock_guard lock(mutex_);
  return groups_[key];
}

Group& ProcessCollectives::group(const Key& key, const Call& call) {
  check_process(name(call.collective));
  Entry& entry = this->entry(key);
  const std::lock_guard lock(entry.mutex);
  if (!entry.group) {
    auto made = request("group", key, call.timeout);
    made.drawn = &entry.drawn;
    made.board = board_.get();
    entry.group = std::make_unique<Group>(made, call);
  }
  return *entry.group;
}

DeviceGroup* ProcessCollectives::device_group(
    MeshDim at, const Call& call, const at::Tensor& shard) {
  if (!shard.is_cuda()) return nullptr;
  check_process(name(call.collective));
  const Key key = key_of(at);
  Entry& entry = this->entry(key);
  const BlockingScope blocking;
  const std::lock_guard lock(entry.mutex);
  if (!entry.device) {
    entry.device = make_device_group(
        request("nccl", key, call.timeout), call, shard.device());
  }
  return entry.device->get();
}

void ProcessCollectives::note_drawn(MeshDim at, uint64_t bits) {
  auto& drawn = entry(key_of(at)).drawn;
  const uint64_t hash = hash_combine(drawn.load(), bits);
  drawn = static_cast<uint32_t>(hash ^ (hash >> 32));
}

c10::intrusive_ptr<c10d::Backend> ProcessCollectives::backend(MeshDim at) {
  check_process("get_group");
  const BlockingScope blocking;
  const Key key = key_of(at);
  Entry& entry = this->entry(key);
  const std::lock_guard lock(entry.mutex);
  if (!entry.backend) {
    try {
      const auto timeout = timeout_.load();
      if (key.device_type == "cuda") {
        entry.backend =
            make_users_device_backend(request("c10d_nccl", key, timeout));
      }
      if (!entry.backend) {
        entry.backend = make_gloo(request("c10d", key, timeout));
      }
    } catch (const c10::NotImplementedError&) {
      throw;
    } catch (const std::exception& error) {
      TORCH_CHECK(
          false,
          "[get_group] rank ",
          launch_.rank,
          " could not connect to the group of mesh dim ",
          at.dim,
          " of ",
          at.mesh.str(),
          ": ",
          cause_of(error));
    }
  }
  return entry.backend;
}

void note_drawn(MeshDim at, uint64_t bits) {
  if (at.mesh.size(at.dim) == 1 || at.mesh.simulated()) return;
  if (auto* processes =
          dynamic_cast<ProcessCollectives*>(&collectives(at.mesh))) {
    processes->note_drawn(at, bits);
  }
}

}  // namespace tessera::detail

namespace tessera {

c10::intrusive_ptr<c10d::Backend> get_group(
    const DeviceMesh& mesh, int64_t dim) {
  const int64_t wrapped = dim < 0 ? dim + mesh.ndim() : dim;
  TORCH_CHECK_INDEX(
      wrapped >= 0 && wrapped < mesh.ndim(),
      "[get_group] dimension ",
      dim,
      " is out of range for ",
      mesh.str());
  auto* processes =
      dynamic_cast<detail::ProcessCollectives*>(&detail::collectives(mesh));
  TORCH_CHECK(
      processes != nullptr,
      "[get_group] all ranks of ",
      mesh.str(),
      " live in this process: a simulated world has no process groups");
  TORCH_CHECK(
      !mesh.local_positions().empty(),
      "[get_group] this rank is outside ",
      mesh.str());
  return processes->backend({mesh, wrapped});
}

}  // namespace tessera
