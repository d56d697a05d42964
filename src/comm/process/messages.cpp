#include "comm/process/messages.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "comm/assumed_shapes.h"
#include "comm/counting.h"
#include "comm/process/rendezvous.h"

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;

// Where both transports have work, neither may wait for long.
constexpr milliseconds kTurn{1};

// What to do where ranks wait for each other.
constexpr const char* kCheckCalls =
    ". Check that every rank of the group is running and calls the same "
    "collectives in the same order with the same sizes";
constexpr const char* kFailed = "it has stopped with this error: ";

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
    const auto text =
        begin_text() + " has left the collective, by another error";
    group_.break_off(text, text);
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
  if (done()) return;
  const auto& transports = group_.transports();
  std::unique_ptr<WaitBoard::LongWait> wait;
  // Nothing has moved since; looked at every few milliseconds.
  auto silent = Clock::now();
  auto deadline = after(silent, call_.timeout);
  auto look = silent + WaitBoard::kLong;
  bool moved_since = false;  // the last look
  try {
    do {
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
      if (now < until) continue;
      if (std::exchange(moved_since, false)) {
        wait.reset();
        silent = now;
        deadline = after(silent, call_.timeout);
        look = silent + WaitBoard::kLong;
      } else if (now >= deadline) {
        fail_late(silent);
      } else {
        look_at_wait(wait, silent);
        look = now + WaitBoard::kAsk;
      }
    } while (!done());
  } catch (const PeerError& error) {
    fail(error);
  }
}

void Messages::advance() {
  try {
    for (const auto& transport : group_.transports()) {
      if (!transport->idle()) transport->progress(Clock::now());
    }
  } catch (const PeerError& error) {
    fail(error);
  }
}

void Messages::look_at_wait(
    std::unique_ptr<WaitBoard::LongWait>& wait, Deadline begin) {
  if (!wait) wait = group_.long_wait(call_, tag_.sequence, awaited());
  const auto verdict = wait->verdict();
  if (verdict) fail_waiting(begin, *verdict);
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

std::string Messages::begin_text() const {
  return tagged_rank(call_, group_.ranks()[group_.coordinate()]);
}

std::string Messages::since_text(const char* what, Deadline begin) const {
  const auto time =
      std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
  return c10::str(
      " ",
      what,
      " ",
      time.count(),
      " ms in ",
      describe_group(group_.ranks(), call_));
}

void Messages::fail_late(Deadline begin) {
  const auto text = c10::str(
      begin_text(),
      since_text("waited", begin),
      " for ",
      name_ranks(group_.ranks_of(awaited())),
      ": Timed out waiting for its message",
      kCheckCalls,
      "; where a rank may be late, give the World a longer timeout");
  fail(text, text);
}

void Messages::fail_waiting(Deadline begin, const WaitBoard::Verdict& verdict) {
  const auto text = c10::str(
      begin_text(),
      since_text("waited", begin),
      " for ",
      name_ranks({verdict.rank}),
      ": ",
      verdict.failed ? kFailed : "",
      verdict.cause);
  // The error of another rank says what to do.
  if (verdict.failed) fail(text, verdict.cause);
  fail(text + kCheckCalls, text + kCheckCalls);
}

void Messages::fail(const PeerError& error) {
  const auto peer = name_ranks(group_.ranks_of({error.peer()}));
  const std::string why = error.what();
  switch (error.kind()) {
    case PeerError::Kind::Disagrees: {
      const auto op = current_comm_cause();
      const auto text = c10::str(
          begin_text(),
          " disagrees with ",
          peer,
          since_text("after", begin_),
          op.empty() ? "" : ", for ",
          op,
          ": ",
          why);
      fail(text, text);
    }
    case PeerError::Kind::Failed: {
      // Others learn of the first error, not of how it has come here.
      const auto text = c10::str(
          begin_text(),
          since_text("lost the connection after", begin_),
          " to ",
          peer,
          ": ",
          kFailed,
          why);
      fail(text, why);
    }
    case PeerError::Kind::Lost:
      break;
  }
  const auto text = c10::str(
      begin_text(),
      since_text("lost the connection after", begin_),
      " to ",
      peer,
      ": ",
      why,
      kCheckCalls,
      "; see the other rank's output for what ended it");
  fail(text, text);
}

void Messages::fail(const std::string& text, const std::string& root) {
  group_.break_off(text, root);
  TORCH_CHECK(false, text, flight_report(group_.ranks()[group_.coordinate()]));
}

}  // namespace tessera::detail
