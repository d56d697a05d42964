// The transport between ranks that share no memory: one TCP connection to each,
// without a thread. A message is a frame with its tag in front, so that the
// receiver knows whose it is before it takes the contents.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport/message_queue.h"
#include "comm/transport/transport.h"

namespace tessera::detail {

// A socket of the system, closed at the end, and in children that are forked
// meanwhile: a peer sees the end of a connection when nobody holds it.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int file);
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  int file() const { return file_; }
  explicit operator bool() const { return file_ >= 0; }
  // The file, for the caller to close.
  int release();

 private:
  int file_ = -1;
};

// A connection to the rank at a coordinate.
struct SocketPeer {
  int64_t coordinate = -1;
  Socket socket;
};

class SocketTransport final : public Transport {
 public:
  // Requires: the sockets do not block.
  SocketTransport(int64_t ranks, std::vector<SocketPeer> peers);
  ~SocketTransport() override;

  void check_peers() override {}
  void send(
      c10::ArrayRef<int64_t> peers,
      const MessageTag& tag,
      const void* data) override;
  void receive(int64_t peer, const MessageTag& tag, void* into) override;
  uint64_t received(int64_t peer) const override;
  bool idle() const override;
  bool progress(Deadline until) override;
  std::vector<int64_t> awaited() const override;
  void close(const std::string& error) noexcept override;

 private:
  // What stands before the contents.
  struct Frame {
    uint64_t kind;
    MessageTag tag;
  };
  static constexpr uint64_t kMessage = 0x7e55e7a;
  static constexpr uint64_t kError = 0x7e55e7b;  // tag.bytes bytes of text
  struct Outgoing {
    Frame frame;
    const char* data;
    size_t moved = 0;  // of frame and contents
  };
  struct Incoming {
    MessageTag tag;
    char* into;
    Frame frame{};
    size_t moved = 0;
  };
  struct Peer {
    int64_t coordinate;
    Socket socket;
    MessageQueue<Outgoing> outgoing;
    MessageQueue<Incoming> incoming;
    uint64_t received = 0;
  };

  bool advance_sends(Peer& peer);
  bool advance_receives(Peer& peer);
  void check_frame(Peer& peer, const Incoming& message);
  // The error of a peer that has gone: behind the messages that lie unread.
  static std::optional<std::string> read_error(Peer& peer);
  // Throws what the peer said before it went, if it did.
  [[noreturn]] void throw_lost(Peer& peer, int error);
  Peer& peer(int64_t coordinate) { return peers_[index_[coordinate]]; }

  std::vector<Peer> peers_;
  std::vector<int64_t> index_;  // into peers_, by coordinate
  size_t pending_ = 0;          // messages that are not done
  bool closed_ = false;
};

}  // namespace tessera::detail
