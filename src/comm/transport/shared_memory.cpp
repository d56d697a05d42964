#include "comm/transport/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using State = MessageRings::State;
using Sleep = MessageRings::Sleep;

// A process that has died wakes nobody: those who sleep look after it this
// often.
constexpr milliseconds kLongestSleep{50};

}  // namespace

SharedOffer SharedOffer::make(int64_t ranks) {
  SharedOffer offer;
  offer.buffer = SharedBuffer::of_this_process();
  if (offer.buffer) offer.rings = MessageRings::create(ranks);
  return offer;
}

SharedMemoryTransport::SharedMemoryTransport(
    int64_t self, int64_t ranks, SharedOffer own, std::vector<SharedPeer> peers)
    : self_(self), own_(std::move(own)), index_(ranks, -1) {
  for (auto& shared : peers) {
    index_[shared.coordinate] = static_cast<int64_t>(peers_.size());
    peers_.push_back({std::move(shared), {}, 0});
  }
}

SharedMemoryTransport::~SharedMemoryTransport() { close(""); }

void SharedMemoryTransport::check_peers() {
  if (!own_.rings->alerted()) return;
  for (const auto& peer : peers_) {
    if (peer.shared.rings->state() == State::Broken) throw_lost(peer);
  }
}

void SharedMemoryTransport::send(
    c10::ArrayRef<int64_t> peers, const MessageTag& tag, const void* data) {
  outgoing_.push(
      {{peers.begin(), peers.end()}, tag, static_cast<const char*>(data), 0});
  advance_sends();
}

void SharedMemoryTransport::receive(
    int64_t from, const MessageTag& tag, void* into) {
  peer(from).incoming.push({tag, static_cast<char*>(into), 0});
  ++receiving_;
}

uint64_t SharedMemoryTransport::received(int64_t from) const {
  return peers_[index_[from]].received;
}

bool SharedMemoryTransport::idle() const {
  return receiving_ == 0 && outgoing_.empty();
}

bool SharedMemoryTransport::send_entry(Outgoing& message) {
  for (const int64_t to : message.peers) {
    if (!own_.rings->has_room(to)) return false;
  }
  RingEntry entry{message.tag, RingEntry::kInline, {}};
  const auto bytes = static_cast<size_t>(message.tag.bytes);
  size_t moved = bytes - message.moved;
  if (bytes <= entry.contents.size()) {
    std::memcpy(entry.contents.data(), message.data, bytes);
  } else {
    moved = std::min(moved, own_.buffer->piece_bytes());
    const auto place = own_.buffer->put(
        message.data + message.moved,
        moved,
        static_cast<int32_t>(message.peers.size()));
    if (!place) return false;
    entry.place = *place;
    std::memcpy(entry.contents.data(), &moved, sizeof(moved));
  }
  message.moved += moved;
  if (entry.place >= 0) own_.rings->note_piece();
  for (const int64_t to : message.peers) {
    own_.rings->push(to, entry);
    peer(to).shared.rings->wake(Sleep::ForMessages);
  }
  return true;
}

bool SharedMemoryTransport::advance_sends() {
  bool moved = false;
  while (!outgoing_.empty() && send_entry(outgoing_.front())) {
    moved = true;
    const auto& message = outgoing_.front();
    if (message.moved == static_cast<size_t>(message.tag.bytes)) {
      outgoing_.pop();
    }
  }
  return moved;
}

void SharedMemoryTransport::take_entry(Peer& peer) {
  RingEntry entry;
  if (!peer.shared.rings->pop(self_, entry)) throw_lost(peer);
  auto& message = peer.incoming.front();
  const auto bytes = static_cast<size_t>(message.tag.bytes);
  if (entry.tag != message.tag) {
    if (entry.place >= 0) peer.shared.process->release(entry.place);
    throw PeerError(
        peer.shared.coordinate,
        PeerError::Kind::Disagrees,
        describe_mismatch(entry.tag, message.tag));
  }
  bool good = false;
  if (entry.place == RingEntry::kInline) {
    good = bytes <= entry.contents.size();
    if (good) std::memcpy(message.into, entry.contents.data(), bytes);
    message.moved = bytes;
  } else {
    size_t piece = 0;
    std::memcpy(&piece, entry.contents.data(), sizeof(piece));
    good = piece <= bytes - message.moved &&
           peer.shared.process->take(
               entry.place, message.into + message.moved, piece);
    message.moved += piece;
    own_.rings->note_piece();
  }
  if (!good) {
    throw PeerError(
        peer.shared.coordinate,
        PeerError::Kind::Lost,
        "its shared memory holds what is no message");
  }
  if (message.moved == bytes) {
    peer.incoming.pop();
    ++peer.received;
    --receiving_;
  }
}

bool SharedMemoryTransport::advance_receives(Peer& peer) {
  bool moved = false;
  while (!peer.incoming.empty() && peer.shared.rings->has_entry(self_)) {
    take_entry(peer);
    moved = true;
  }
  // It may wait for the room that was made.
  if (moved) peer.shared.rings->wake(Sleep::ForRoomToo);
  return moved;
}

bool SharedMemoryTransport::advance() {
  bool moved = advance_sends();
  if (receiving_ == 0) return moved;
  for (auto& peer : peers_) moved |= advance_receives(peer);
  return moved;
}

bool SharedMemoryTransport::progress(Deadline until) {
  if (advance()) return true;
  for (;;) {
    const auto left = until - Clock::now();
    if (left <= nanoseconds(0)) return false;
    auto& own = *own_.rings;
    const uint32_t prepared = own.prepare_sleep(
        outgoing_.empty() ? Sleep::ForMessages : Sleep::ForRoomToo);
    bool moved = advance();
    if (!moved) {
      own.sleep(prepared, std::min<nanoseconds>(left, kLongestSleep));
    }
    own.end_sleep();
    if (moved || advance() || look_after_peers()) return true;
  }
}

std::vector<int64_t> SharedMemoryTransport::awaited() const {
  std::vector<int64_t> found;
  for (const auto& peer : peers_) {
    if (!peer.incoming.empty()) found.push_back(peer.shared.coordinate);
  }
  if (found.empty() && !outgoing_.empty()) {
    const auto& to = outgoing_.front().peers;
    found.assign(to.begin(), to.end());
  }
  return found;
}

bool SharedMemoryTransport::look_after_peers() {
  bool moved = false;
  for (auto& peer : peers_) {
    const State state = peer.shared.rings->state();
    if (state == State::Broken) throw_lost(peer);
    const bool sends =
        !outgoing_.empty() && std::count(
                                  outgoing_.front().peers.begin(),
                                  outgoing_.front().peers.end(),
                                  peer.shared.coordinate) != 0;
    if (peer.incoming.empty() && !sends) continue;
    const bool gone = state == State::Left || !peer.shared.process->running();
    // What it sent before it went is still read.
    if (gone && !advance_receives(peer)) throw_lost(peer);
    const uint32_t pieces = peer.shared.rings->pieces();
    moved |= std::exchange(peer.pieces, pieces) != pieces;
  }
  return moved;
}

void SharedMemoryTransport::throw_lost(const Peer& peer) const {
  const auto& rings = *peer.shared.rings;
  const auto state = rings.state();
  if (state == State::Broken) {
    throw PeerError(
        peer.shared.coordinate, PeerError::Kind::Failed, rings.error());
  }
  throw PeerError(
      peer.shared.coordinate,
      PeerError::Kind::Lost,
      state == State::Left ? "it has left the group" : "its process has ended");
}

void SharedMemoryTransport::close(const std::string& error) noexcept {
  if (std::exchange(closed_, true) || !own_.rings) return;
  own_.rings->set_state(error.empty() ? State::Left : State::Broken, error);
  for (auto& peer : peers_) {
    auto& rings = *peer.shared.rings;
    // What will not be read must not take room from other groups.
    RingEntry entry;
    while (rings.has_entry(self_)) {
      const bool readable = rings.pop(self_, entry);
      if (readable && entry.place >= 0) {
        peer.shared.process->release(entry.place);
      }
    }
    const bool reads = error.empty() && rings.state() == State::Open &&
                       peer.shared.process->running();
    if (!reads) {
      for (const int64_t place : own_.rings->revoke(peer.shared.coordinate)) {
        own_.buffer->release(place);
      }
    }
    rings.alert();
  }
}

}  // namespace tessera::detail
