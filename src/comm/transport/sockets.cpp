#include "comm/transport/sockets.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/fork.h"

namespace tessera::detail {

namespace {

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// How much of an error's text is read, whatever its frame says.
size_t error_bytes(int64_t told) {
  return static_cast<size_t>(std::clamp<int64_t>(
      told, 0, static_cast<int64_t>(Transport::kMostErrorBytes)));
}

// The two parts of a frame, less the bytes that have been moved already.
struct FrameParts {
  iovec parts[2];
  msghdr message{};

  FrameParts(
      void* head,
      size_t head_bytes,
      void* data,
      size_t data_bytes,
      size_t moved)
      : parts{{head, head_bytes}, {data, data_bytes}} {
    int first = 0;
    if (moved >= head_bytes) {
      first = 1;
      moved -= head_bytes;
    }
    parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + moved;
    parts[first].iov_len -= moved;
    message.msg_iov = parts + first;
    message.msg_iovlen = 2 - first;
  }
};

}  // namespace

Socket::Socket(int file) : file_(file) {
  if (file_ >= 0) hide_from_children(file_);
}

Socket::~Socket() {
  if (file_ >= 0) close_hidden(file_);
}

int Socket::release() {
  if (file_ >= 0) show_to_children(file_);
  return std::exchange(file_, -1);
}

Socket::Socket(Socket&& other) noexcept
    : file_(std::exchange(other.file_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

SocketTransport::SocketTransport(int64_t ranks, std::vector<SocketPeer> peers)
    : index_(ranks, -1) {
  for (auto& given : peers) {
    index_[given.coordinate] = static_cast<int64_t>(peers_.size());
    peers_.push_back({given.coordinate, std::move(given.socket), {}, {}, 0});
  }
}

SocketTransport::~SocketTransport() { close(""); }

void SocketTransport::send(
    c10::ArrayRef<int64_t> peers, const MessageTag& tag, const void* data) {
  for (const int64_t to : peers) {
    auto& queue = peer(to).outgoing;
    queue.push({{kMessage, tag}, static_cast<const char*>(data), 0});
    ++pending_;
    advance_sends(peer(to));
  }
}

void SocketTransport::receive(int64_t from, const MessageTag& tag, void* into) {
  peer(from).incoming.push({tag, static_cast<char*>(into), {}, 0});
  ++pending_;
}

uint64_t SocketTransport::received(int64_t from) const {
  return peers_[index_[from]].received;
}

bool SocketTransport::idle() const { return pending_ == 0; }

bool SocketTransport::advance_sends(Peer& peer) {
  bool any = false;
  while (!peer.outgoing.empty()) {
    auto& message = peer.outgoing.front();
    const auto bytes = static_cast<size_t>(message.frame.tag.bytes);
    FrameParts rest(
        &message.frame,
        sizeof(Frame),
        const_cast<char*>(message.data),
        bytes,
        message.moved);
    const auto sent =
        sendmsg(peer.socket.file(), &rest.message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (would_block(errno)) return any;
      throw_lost(peer, errno);
    }
    any = true;
    message.moved += static_cast<size_t>(sent);
    if (message.moved < sizeof(Frame) + bytes) return any;
    peer.outgoing.pop();
    --pending_;
  }
  return any;
}

bool SocketTransport::advance_receives(Peer& peer) {
  bool any = false;
  while (!peer.incoming.empty()) {
    auto& message = peer.incoming.front();
    const auto bytes = static_cast<size_t>(message.tag.bytes);
    // Straight to where it belongs: if the frame turns out to be another one,
    // nobody will look at what was written there.
    FrameParts rest(
        &message.frame, sizeof(Frame), message.into, bytes, message.moved);
    const auto got = recvmsg(peer.socket.file(), &rest.message, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && would_block(errno)) return any;
    if (got <= 0) throw_lost(peer, got == 0 ? 0 : errno);
    any = true;
    const size_t before =
        std::exchange(message.moved, message.moved + static_cast<size_t>(got));
    if (before < sizeof(Frame) && message.moved >= sizeof(Frame)) {
      check_frame(peer, message);
    }
    if (message.moved < sizeof(Frame) + bytes) return any;
    peer.incoming.pop();
    ++peer.received;
    --pending_;
  }
  return any;
}

void SocketTransport::check_frame(Peer& peer, const Incoming& message) {
  const auto& frame = message.frame;
  if (frame.kind == kMessage && frame.tag == message.tag) return;
  if (frame.kind == kMessage) {
    throw PeerError(
        peer.coordinate,
        PeerError::Kind::Disagrees,
        describe_mismatch(frame.tag, message.tag));
  }
  if (frame.kind != kError) {
    throw PeerError(
        peer.coordinate, PeerError::Kind::Lost, "it sent what is no message");
  }
  // The text came after the frame, its first bytes perhaps with it.
  std::string text(error_bytes(frame.tag.bytes), '\0');
  const size_t here = std::min(text.size(), message.moved - sizeof(Frame));
  std::memcpy(text.data(), message.into, here);
  pollfd more{peer.socket.file(), POLLIN, 0};
  size_t at = here;
  while (at < text.size() && poll(&more, 1, 100) > 0) {
    const auto got = recv(
        peer.socket.file(), text.data() + at, text.size() - at, MSG_DONTWAIT);
    if (got <= 0) break;
    at += static_cast<size_t>(got);
  }
  text.resize(at);
  throw PeerError(peer.coordinate, PeerError::Kind::Failed, text);
}

std::optional<std::string> SocketTransport::read_error(Peer& peer) {
  const int file = peer.socket.file();
  const auto read = [&](void* into, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
      const auto got =
          recv(file, static_cast<char*>(into) + at, bytes - at, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      at += static_cast<size_t>(got);
    }
    return true;
  };
  // The first frame may have come in part.
  Frame frame{};
  size_t moved = 0;
  if (!peer.incoming.empty()) {
    frame = peer.incoming.front().frame;
    moved = peer.incoming.front().moved;
  }
  for (;; moved = 0) {
    const size_t head = std::min(moved, sizeof(Frame));
    if (!read(reinterpret_cast<char*>(&frame) + head, sizeof(Frame) - head) ||
        frame.tag.bytes < static_cast<int64_t>(moved - head)) {
      return std::nullopt;
    }
    auto left = static_cast<size_t>(frame.tag.bytes) - (moved - head);
    if (frame.kind == kError) {
      std::string text(error_bytes(frame.tag.bytes), '\0');
      if (!read(text.data(), text.size())) return std::nullopt;
      return text;
    }
    std::array<char, 4096> skipped;
    while (left > 0) {
      const size_t bytes = std::min(left, skipped.size());
      if (!read(skipped.data(), bytes)) return std::nullopt;
      left -= bytes;
    }
  }
}

void SocketTransport::throw_lost(Peer& peer, int error) {
  if (error != 0) {
    // A send fails when the peer has gone; what it said before may lie here.
    if (const auto text = read_error(peer)) {
      throw PeerError(peer.coordinate, PeerError::Kind::Failed, *text);
    }
  }
  throw PeerError(
      peer.coordinate,
      PeerError::Kind::Lost,
      error == 0
          ? std::string("it has left the group, or its process has ended")
          : std::string("the connection is lost: ") + std::strerror(error));
}

bool SocketTransport::progress(Deadline until) {
  std::vector<pollfd> files;
  std::vector<Peer*> whose;
  for (auto& peer : peers_) {
    const int events = (peer.incoming.empty() ? 0 : POLLIN) |
                       (peer.outgoing.empty() ? 0 : POLLOUT);
    if (events == 0) continue;
    files.push_back({peer.socket.file(), static_cast<int16_t>(events), 0});
    whose.push_back(&peer);
  }
  const auto left = std::max<int64_t>(
      0,
      std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now())
          .count());
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(left / 1'000'000'000);
  limit.tv_nsec = static_cast<int64_t>(left % 1'000'000'000);
  if (ppoll(files.data(), files.size(), &limit, nullptr) <= 0) return false;
  bool moved = false;
  for (size_t i = 0; i < files.size(); ++i) {
    const int events = files[i].revents;
    if ((events & (POLLOUT | POLLERR)) != 0) {
      moved |= advance_sends(*whose[i]);
    }
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
      moved |= advance_receives(*whose[i]);
    }
  }
  return moved;
}

std::vector<int64_t> SocketTransport::awaited() const {
  std::vector<int64_t> found;
  for (const bool in : {true, false}) {
    for (const auto& peer : peers_) {
      if (in ? !peer.incoming.empty() : !peer.outgoing.empty()) {
        found.push_back(peer.coordinate);
      }
    }
    if (!found.empty()) break;
  }
  return found;
}

void SocketTransport::close(const std::string& error) noexcept {
  if (std::exchange(closed_, true)) return;
  for (auto& peer : peers_) {
    const int file = peer.socket.file();
    // Not into the middle of a message.
    const bool between =
        peer.outgoing.empty() || peer.outgoing.front().moved == 0;
    if (!error.empty() && between) {
      const size_t bytes = error_bytes(static_cast<int64_t>(error.size()));
      Frame frame{kError, {}};
      frame.tag.bytes = static_cast<int64_t>(bytes);
      FrameParts all(
          &frame, sizeof(Frame), const_cast<char*>(error.data()), bytes, 0);
      (void)!sendmsg(file, &all.message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    // What lies unread would turn the end of the connection into a reset, which
    // drops what is on its way.
    char unread[4096];
    while (recv(file, unread, sizeof(unread), MSG_DONTWAIT) > 0) {
    }
    shutdown(file, SHUT_WR);
    peer.socket = Socket();
  }
}

}  // namespace tessera::detail
