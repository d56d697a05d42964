#include "comm/group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "comm/errors.h"
#include "comm/rendezvous.h"
#include "core/hash.h"

namespace tessera::detail {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Messages of ours, among those that others may send over the same backend; the
// lanes have the tags from here on, then detours.
constexpr int kTag = 0x7e55;

milliseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
}

// "group [0, 1] (mesh dim 'tp' of DeviceMesh(...))"
std::string describe(const std::vector<int64_t>& ranks, const Call& call) {
  std::string text = "group [";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  text += "] (";
  if (call.mesh == nullptr) return text + "the world)";
  if (call.dim >= 0) {
    const auto names = call.mesh->dim_names();
    text += "mesh dim ";
    text +=
        names.empty() ? std::to_string(call.dim) : "'" + names[call.dim] + "'";
    text += " of ";
  }
  return text + call.mesh->str() + ")";
}

}  // namespace

Group::Group(GroupRequest request, const Call& call)
    : ranks_(request.ranks), coordinate_(request.coordinate) {
  const auto begin = Clock::now();
  const int64_t rank = ranks_[coordinate_];
  std::vector<int64_t> missing;
  try {
    announce(*request.store);
    // Ours first: unlike the backend, it says who is missing.
    missing = meet(*request.store, "member", rank, ranks_, request.timeout);
    if (missing.empty()) {
      request.timeout =
          std::max(request.timeout - since(begin), milliseconds(1));
      backend_ = make_gloo(request);
      missing = meet_neighbours(*request.store, request.timeout);
    }
  } catch (const c10::NotImplementedError&) {
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK(
        false,
        "[",
        call.collective,
        "] rank ",
        rank,
        " could not connect to ",
        describe(ranks_, call),
        " in ",
        since(begin).count(),
        " ms: ",
        cause_of(error),
        ". Check that every rank of it is running and can be reached");
  }
  TORCH_CHECK(
      missing.empty(),
      "[",
      call.collective,
      "] rank ",
      rank,
      " waited ",
      since(begin).count(),
      " ms in ",
      describe(ranks_, call),
      ": ",
      name_ranks(missing),
      " did not come. Check that every rank of the group is running and calls "
      "the same collectives in the same order; where a rank may be late, give "
      "the World a longer timeout");
}

void Group::announce(c10d::Store& store) {
  outbox_ = Outbox::of_this_process();
  if (outbox_) letters_ = SentLetters::create(size(), Exchange::kLanes);
  const std::string rank = std::to_string(ranks_[coordinate_]);
  put_text(store, "outbox/" + rank, letters_ ? outbox_->name() : "");
  put_text(store, "letters/" + rank, letters_ ? letters_->name() : "");
}

std::vector<int64_t> Group::meet_neighbours(
    c10d::Store& store, milliseconds timeout) {
  const auto text_of = [&](const char* name, int64_t rank) {
    return get_text(store, name + std::to_string(rank));
  };
  neighbours_.resize(ranks_.size());
  std::string opened(ranks_.size(), '-');
  for (size_t c = 0; c < ranks_.size(); ++c) {
    if (static_cast<int64_t>(c) == coordinate_) continue;
    auto& them = neighbours_[c];
    them.outbox = Inbox::open(text_of("outbox/", ranks_[c]));
    if (them.outbox) {
      them.letters = ReceivedLetters::open(
          text_of("letters/", ranks_[c]), coordinate_, Exchange::kLanes);
    }
    if (them.letters) opened[c] = '+';
  }
  const std::string rank = std::to_string(ranks_[coordinate_]);
  put_text(store, "opened/" + rank, opened);
  auto missing = meet(store, "neighbour", ranks_[coordinate_], ranks_, timeout);
  if (!missing.empty()) return missing;
  for (size_t c = 0; c < ranks_.size(); ++c) {
    if (static_cast<int64_t>(c) == coordinate_) continue;
    neighbours_[c].reads_ours =
        text_of("opened/", ranks_[c])[coordinate_] == '+';
  }
  return {};
}

void Group::break_off(const std::string& error) {
  error_ = error;
  letters_.reset();
}

Exchange::Exchange(Group& group, const Call& call)
    : group_(group),
      call_(call),
      subject_(static_cast<int64_t>(
          hash_combine(0, std::string_view(call.collective)))),
      begin_(Clock::now()) {
  TORCH_CHECK(
      group.error_.empty(),
      "[",
      call.collective,
      "] rank ",
      group.ranks()[group.coordinate()],
      " can no longer use ",
      describe(group.ranks(), call),
      ", which has failed before: ",
      group.error_);
  messages_.reserve(2 * group.ranks().size());
}

Exchange::~Exchange() {
  for (const auto& laid : laid_) group_.outbox_->let_go(laid.place);
}

size_t Exchange::add(Message message) {
  messages_.push_back(std::move(message));
  return messages_.size() - 1;
}

size_t Exchange::start(
    Way way, int64_t peer, const at::Tensor& tensor, int tag) {
  std::vector<at::Tensor> tensors{tensor};
  auto& backend = *group_.backend_.backend;
  const auto rank = static_cast<int>(peer);
  try {
    return add(
        {.work = way == Way::In ? backend.recv(tensors, rank, tag)
                                : backend.send(tensors, rank, tag),
         .peer = peer,
         .way = way});
  } catch (const std::exception& error) {
    fail(peer, cause_of(error));
  }
}

size_t Exchange::receive(int64_t peer, const at::Tensor& into, int lane) {
  if (into.numel() == 0) return add({.peer = peer, .way = Way::In});
  if (!group_.neighbours_[peer].letters) {
    return start(Way::In, peer, into, kTag + lane);
  }
  return add({.peer = peer, .way = Way::In, .into = into, .lane = lane});
}

size_t Exchange::send(int64_t peer, const at::Tensor& from, int lane) {
  if (from.numel() == 0) return add({.peer = peer, .way = Way::Out});
  if (!group_.neighbours_[peer].reads_ours) {
    return start(Way::Out, peer, from, kTag + lane);
  }
  Letter letter{};
  letter.bytes = static_cast<int64_t>(from.nbytes());
  letter.subject = subject_;
  if (from.nbytes() <= letter.text.size()) {
    letter.place = Letter::kInside;
    std::memcpy(letter.text.data(), from.const_data_ptr(), from.nbytes());
  } else {
    letter.place = lay(from).value_or(Letter::kElsewhere);
  }
  if (letter.place >= 0) group_.outbox_->hold(letter.place);
  if (!group_.letters_->post(peer, lane, letter, deadline())) {
    fail(peer, "it does not read what is sent to it");
  }
  if (letter.place != Letter::kElsewhere) {
    return add({.peer = peer, .way = Way::Out});
  }
  const int number = ++detours(Way::Out, peer, lane);
  return start(Way::Out, peer, from, kTag + kLanes * number + lane);
}

std::optional<int64_t> Exchange::lay(const at::Tensor& from) {
  // What goes to several ranks is laid once.
  for (const auto& [message, place] : laid_) {
    if (message.const_data_ptr() == from.const_data_ptr() &&
        message.nbytes() == from.nbytes()) {
      return place;
    }
  }
  const auto place = group_.outbox_->lay(from.const_data_ptr(), from.nbytes());
  if (place) laid_.push_back({from, *place});
  return place;
}

int& Exchange::detours(Way way, int64_t peer, int lane) {
  detours_.resize(2 * group_.ranks().size() * kLanes);
  return detours_[(peer * 2 + (way == Way::In ? 1 : 0)) * kLanes + lane];
}

void Exchange::take_letter(int64_t peer, int lane, const at::Tensor& into) {
  auto& them = group_.neighbours_[peer];
  switch (them.letters->wait(lane, deadline())) {
    case ReceivedLetters::Arrival::Came:
      break;
    case ReceivedLetters::Arrival::Late:
      fail(peer, "Timed out waiting for its message");
    case ReceivedLetters::Arrival::Gone:
      fail(peer, "it has left the group");
  }
  const Letter letter = them.letters->take(lane);
  if (letter.subject != subject_) {
    fail(peer, "it has sent a message of another collective");
  }
  if (letter.bytes != static_cast<int64_t>(into.nbytes())) {
    fail(
        peer,
        c10::str(
            "it sent ",
            letter.bytes,
            " bytes, not the ",
            into.nbytes(),
            " that were expected"));
  }
  if (letter.place == Letter::kInside) {
    std::memcpy(into.mutable_data_ptr(), letter.text.data(), into.nbytes());
  } else if (letter.place == Letter::kElsewhere) {
    const int number = ++detours(Way::In, peer, lane);
    wait_for_work(
        messages_[start(Way::In, peer, into, kTag + kLanes * number + lane)]);
  } else {
    them.outbox->take(letter.place, into.mutable_data_ptr(), into.nbytes());
  }
}

void Exchange::wait_for_work(Message& message) {
  if (!message.work) return;
  // Zero would mean for ever.
  const auto left = std::max(call_.timeout - since(begin_), milliseconds(1));
  try {
    message.work->wait(left);
  } catch (const std::exception& error) {
    fail(message.peer, cause_of(error));
  }
  message.work.reset();
}

void Exchange::wait(size_t message) {
  wait_for_work(messages_[message]);
  const int64_t peer = messages_[message].peer;
  const int lane = messages_[message].lane;
  // Letters of a lane come in the order in which they were asked for.
  for (size_t i = 0; messages_[message].into.defined(); ++i) {
    auto& earlier = messages_[i];
    if (earlier.into.defined() && earlier.peer == peer &&
        earlier.lane == lane) {
      take_letter(peer, lane, std::exchange(earlier.into, at::Tensor()));
    }
  }
}

void Exchange::finish() {
  // What comes first: a message that made a detour leaves its rank when it is
  // asked for.
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (messages_[i].way == Way::In) wait(i);
  }
  for (auto& message : messages_) wait_for_work(message);
  messages_.clear();
}

void Exchange::fail(int64_t peer, const std::string& cause) const {
  const auto waited = since(begin_);
  const bool late = waited >= call_.timeout;
  const std::string text = c10::str(
      "[",
      call_.collective,
      "] rank ",
      group_.ranks()[group_.coordinate()],
      late ? " waited " : " lost the connection after ",
      waited.count(),
      " ms in ",
      describe(group_.ranks(), call_),
      late ? " for rank " : " to rank ",
      group_.ranks()[peer],
      ": ",
      cause,
      ". Check that every rank of the group is running and calls the same "
      "collectives in the same order with the same sizes",
      late ? "; where a rank may be late, give the World a longer timeout"
           : "; what ended the other rank stands in its own output");
  group_.break_off(text);
  TORCH_CHECK(false, text);
}

}  // namespace tessera::detail
