#include "comm/process/messages.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "comm/assumed_shapes.h"
#include "comm/counting.h"
#include "comm/errors.h"
#include "comm/process/rendezvous.h"

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;

// Where both transports have work, neither may wait for long.
constexpr milliseconds kTurn{1};

milliseconds since(Deadline begin) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
}

// Begins a call of the group.
MessageTag next_tag(Group& group, const Call& call) {
  TORCH_CHECK(
      group.error().empty(),
      "[",
      name(call.collective),
      "] rank ",
      group.ranks()[group.coordinate()],
      " can no longer use ",
      describe_group(group.ranks(), call),
      ", which has failed before: ",
      group.error());
  MessageTag tag;
  tag.sequence = group.next_sequence();
  tag.collective = call.collective;
  tag.reduction = call.reduction;
  tag.cause = hash_cause(current_comm_cause());
  tag.drawn = static_cast<uint16_t>(group.drawn());
  tag.shapes = call.mesh == nullptr ? 0 : assumed_shapes(*call.mesh);
  return tag;
}

}  // namespace

Messages::Messages(Group& group, const Call& call)
    : group_(group),
      call_(call),
      tag_(next_tag(group, call)),
      begin_(Clock::now()),
      flight_(
          {group.flight_group(),
           tag_.sequence,
           name(call.collective),
           call.bytes,
           current_comm_cause(),
           begin_}) {
  due_.resize(group.size());
  for (int64_t c = 0; c < group.size(); ++c) {
    if (c != group.coordinate()) due_[c] = group.transport(c).received(c);
  }
  try {
    for (const auto& transport : group.transports()) transport->check_peers();
  } catch (const PeerError& error) {
    fail(error);
  }
}

Messages::~Messages() {
  if (group_.error().empty() && !idle()) {
    group_.break_off("an error on this rank has ended a collective");
  }
}

bool Messages::idle() const {
  return std::all_of(
      group_.transports().begin(),
      group_.transports().end(),
      [](const auto& transport) { return transport->idle(); });
}

MessageTag Messages::tag(const at::Tensor& tensor) const {
  MessageTag tag = tag_;
  tag.dtype = tensor.scalar_type();
  tag.bytes = static_cast<int64_t>(tensor.nbytes());
  return tag;
}

Messages::Receipt Messages::receive(int64_t peer, const at::Tensor& into) {
  if (into.numel() == 0) return {peer, due_[peer]};
  group_.transport(peer).receive(peer, tag(into), into.mutable_data_ptr());
  return {peer, ++due_[peer]};
}

void Messages::send(int64_t peer, const at::Tensor& from) {
  send(c10::ArrayRef<int64_t>(peer), from);
}

void Messages::send_to_all(const at::Tensor& from) {
  const int64_t n = group_.size();
  // Each rank begins with the next one, so that not all press the same.
  c10::SmallVector<int64_t, 8> peers;
  for (const auto& transport : group_.transports()) {
    peers.clear();
    for (int64_t step = 1; step < n; ++step) {
      const int64_t c = (group_.coordinate() + step) % n;
      if (&group_.transport(c) == transport.get()) peers.push_back(c);
    }
    send(peers, from);
  }
}

void Messages::send(c10::ArrayRef<int64_t> peers, const at::Tensor& from) {
  if (from.numel() == 0 || peers.empty()) return;
  sent_.push_back(from);
  try {
    group_.transport(peers[0]).send(peers, tag(from), from.const_data_ptr());
  } catch (const PeerError& error) {
    fail(error);
  }
}

std::vector<int64_t> Messages::awaited() const {
  std::vector<int64_t> peers;
  for (const auto& transport : group_.transports()) {
    for (const int64_t c : transport->awaited()) peers.push_back(c);
  }
  return peers;
}

template <typename Done>
void Messages::progress_until(Done done) {
  const auto deadline = begin_ + call_.timeout;
  const auto& transports = group_.transports();
  std::unique_ptr<WaitBoard::LongWait> wait;
  auto look = begin_ + WaitBoard::kLong;
  bool moved_since = false;  // the last look
  try {
    while (!done()) {
      size_t busy = 0;
      for (const auto& transport : transports)
        busy += transport->idle() ? 0 : 1;
      const auto until = std::min(deadline, look);
      bool moved = false;
      for (const auto& transport : transports) {
        if (transport->idle()) continue;
        moved |= transport->progress(
            busy == 1 ? until : std::min(until, Clock::now() + kTurn));
      }
      moved_since |= moved;
      if (moved) continue;
      const auto now = Clock::now();
      if (now >= deadline) {
        fail(
            group_.ranks_of(awaited()),
            "Timed out waiting for its message",
            true);
      }
      if (now < look) continue;
      if (std::exchange(moved_since, false)) {
        wait.reset();
        look = now + WaitBoard::kLong;
      } else {
        look_at_wait(wait);
        look = now + WaitBoard::kAsk;
      }
    }
  } catch (const PeerError& error) {
    fail(error);
  }
}

void Messages::look_at_wait(std::unique_ptr<WaitBoard::LongWait>& wait) {
  if (!wait) wait = group_.long_wait(call_, tag_.sequence, awaited());
  const auto verdict = wait->verdict();
  if (verdict) fail({verdict->rank}, verdict->cause, true);
}

void Messages::wait(const Receipt& receipt) {
  const auto& transport = group_.transport(receipt.peer);
  progress_until(
      [&] { return transport.received(receipt.peer) >= receipt.number; });
}

void Messages::finish() {
  progress_until([&] { return idle(); });
  sent_.clear();
}

void Messages::fail(const PeerError& error) {
  fail(group_.ranks_of({error.peer()}), error.what(), false);
}

void Messages::fail(
    const std::vector<int64_t>& ranks, const std::string& cause, bool waited) {
  const auto time = since(begin_);
  const std::string text = c10::str(
      "[",
      name(call_.collective),
      "] rank ",
      group_.ranks()[group_.coordinate()],
      waited ? " waited " : " lost the connection after ",
      time.count(),
      " ms in ",
      describe_group(group_.ranks(), call_),
      waited ? " for " : " to ",
      name_ranks(ranks),
      ": ",
      cause,
      ". Check that every rank of the group is running and calls the same "
      "collectives in the same order with the same sizes",
      !waited ? "; what ended the other rank stands in its own output"
      : time >= call_.timeout
          ? "; where a rank may be late, give the World a longer timeout"
          : "");
  group_.break_off(text);
  TORCH_CHECK(false, text, flight_report(group_.ranks()[group_.coordinate()]));
}

}  // namespace tessera::detail
