// The life of a world of processes, its groups, and what concerns all ranks.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/counting.h"
#include "comm/errors.h"
#include "comm/process.h"
#include "comm/rendezvous.h"
#include "tessera/process_group.h"

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;

// How long rank 0 keeps the store for the others when its world ends.
constexpr milliseconds kClosingTime{10000};

}  // namespace

ProcessCollectives::ProcessCollectives(
    Launch launch,
    c10::intrusive_ptr<c10d::Store> store,
    const std::atomic<milliseconds>& timeout)
    : launch_(std::move(launch)),
      store_(std::move(store)),
      timeout_(timeout),
      exceptions_(std::uncaught_exceptions()) {}

ProcessCollectives::~ProcessCollectives() {
  groups_.clear();
  if (launch_.served_by_launcher) return;
  try {
    const bool waits =
        launch_.rank == 0 && std::uncaught_exceptions() <= exceptions_;
    if (waits) {
      std::vector<int64_t> all(launch_.size);
      std::iota(all.begin(), all.end(), 0);
      meet(*store_, "closed", 0, all, std::min(timeout_.load(), kClosingTime));
    } else {
      store_->set(
          "closed/" + std::to_string(launch_.rank), std::vector<uint8_t>{1});
    }
  } catch (...) {
    // The store has gone before us: nobody is left to be told.
  }
}

Call ProcessCollectives::call(const char* collective, MeshDim at) const {
  return {collective, &at.mesh, at.dim, timeout_.load()};
}

Group& ProcessCollectives::group(MeshDim at, const Call& call) {
  const auto all = at.mesh.all_ranks();
  std::vector<int64_t> ranks;
  for (const int64_t position :
       at.mesh.group(at.mesh.local_positions()[0], at.dim)) {
    ranks.push_back(all[position]);
  }
  return group(ranks, call);
}

c10::intrusive_ptr<c10d::Backend> ProcessCollectives::backend(MeshDim at) {
  return group(at, call("get_group", at)).backend();
}

Group& ProcessCollectives::group(
    const std::vector<int64_t>& ranks, const Call& call) {
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    entry = &groups_[ranks];
  }
  const std::lock_guard lock(entry->mutex);
  if (!entry->group) {
    std::string name = "group";
    for (const int64_t rank : ranks) name += "," + std::to_string(rank);
    const auto me = std::find(ranks.begin(), ranks.end(), launch_.rank);
    TORCH_INTERNAL_ASSERT(me != ranks.end());
    store_->setTimeout(call.timeout);
    entry->group = std::make_unique<Group>(
        GroupRequest{
            c10::make_intrusive<c10d::PrefixStore>(name, store_),
            ranks,
            me - ranks.begin(),
            launch_.one_host,
            call.timeout},
        call);
  }
  return *entry->group;
}

void ProcessCollectives::agree(
    const DeviceMesh& mesh, const std::string& local_error, ErrorKind kind) {
  const int64_t n = mesh.size();
  if (!mesh.contains(launch_.rank) || n == 1) {
    if (!local_error.empty()) throw_error(kind, local_error);
    return;
  }
  if (counting()) report("agree", n, (n - 1) * kAgreeBytes);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Call call{"agree", &mesh, -1, timeout_.load()};
  Group& group = this->group(mesh.ranks(launch_.rank), call);
  const std::lock_guard lock(group.mutex());
  const int64_t me = group.coordinate();

  // From each rank the length of its text and the kind of its error.
  const at::Tensor verdicts = at::empty({n, 2}, at::kLong);
  static_assert(kAgreeBytes == 2 * sizeof(int64_t));
  auto* verdict = verdicts.data_ptr<int64_t>();
  verdict[2 * me] = static_cast<int64_t>(local_error.size());
  verdict[2 * me + 1] = static_cast<int64_t>(kind);
  Exchange exchange(group, call);
  for (int64_t c = 0; c < n; ++c) {
    if (c == me) continue;
    exchange.receive(c, verdicts.select(0, c));
    exchange.send(c, verdicts.select(0, me));
  }
  exchange.finish();

  int64_t first = 0;
  while (first < n && verdict[2 * first] == 0) ++first;
  if (first == n) return;
  std::string text = local_error;
  text.resize(verdict[2 * first]);
  const at::Tensor bytes = at::from_blob(
      text.data(), {static_cast<int64_t>(text.size())}, at::kByte);
  if (first == me) {
    for (int64_t c = 0; c < n; ++c) {
      if (c != me) exchange.send(c, bytes);
    }
  } else {
    exchange.receive(first, bytes);
  }
  exchange.finish();
  throw_error(
      static_cast<ErrorKind>(verdict[2 * first + 1]),
      c10::str(text, " (rank ", group.ranks()[first], ")"));
}

void ProcessCollectives::barrier() {
  const int64_t n = launch_.size;
  if (n == 1) return;
  std::vector<int64_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  const Call call{"World::barrier", nullptr, -1, timeout_.load()};
  Group& group = this->group(all, call);
  const std::lock_guard lock(group.mutex());
  const at::Tensor signs = at::zeros({n}, at::kByte);
  Exchange exchange(group, call);
  for (int64_t c = 0; c < n; ++c) {
    if (c == launch_.rank) continue;
    exchange.receive(c, signs.narrow(0, c, 1));
    exchange.send(c, signs.narrow(0, launch_.rank, 1));
  }
  exchange.finish();
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
