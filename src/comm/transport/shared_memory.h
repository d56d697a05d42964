// The transport between ranks of one machine. A message is put, in pieces, into
// the sender's shared buffer and announced in a ring; the reader copies it out.
// Short ones travel in the ring itself.
#pragma once

#include <memory>
#include <vector>

#include "comm/transport/message_queue.h"
#include "comm/transport/message_rings.h"
#include "comm/transport/shared_buffer.h"
#include "comm/transport/transport.h"

namespace tessera::detail {

// What this rank offers to the others of its group.
struct SharedOffer {
  // Null where there is no memory to share.
  std::shared_ptr<SharedBuffer> buffer;
  std::unique_ptr<MessageRings> rings;

  static SharedOffer make(int64_t ranks);
};

// A rank that was found to share memory with this one.
struct SharedPeer {
  int64_t coordinate = -1;
  std::unique_ptr<MessageRings> rings;
  std::shared_ptr<PeerProcess> process;
};

class SharedMemoryTransport final : public Transport {
 public:
  // `self` is this rank's coordinate; each peer must have opened our rings too.
  SharedMemoryTransport(
      int64_t self,
      int64_t ranks,
      SharedOffer own,
      std::vector<SharedPeer> peers);
  ~SharedMemoryTransport() override;

  void check_peers() override;
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
  struct Incoming {
    MessageTag tag;
    char* into;
    size_t moved = 0;
  };
  struct Outgoing {
    c10::SmallVector<int64_t, 4> peers;
    MessageTag tag;
    const char* data;
    size_t moved = 0;
  };
  struct Peer {
    SharedPeer shared;
    MessageQueue<Incoming> incoming;
    uint64_t received = 0;
    uint32_t pieces = 0;  // that it had moved at the last look
  };

  bool advance();
  bool advance_sends();
  bool advance_receives(Peer& peer);
  // One entry, or false if it has to wait for room.
  bool send_entry(Outgoing& message);
  void take_entry(Peer& peer);
  // Throws if one that something waits for, or that has failed, is not there.
  // Returns whether one that something waits for has moved a piece since the
  // last look: messages follow each other, and it may be busy with those of
  // other ranks.
  bool look_after_peers();
  [[noreturn]] void throw_lost(const Peer& peer) const;
  Peer& peer(int64_t coordinate) { return peers_[index_[coordinate]]; }

  const int64_t self_;
  SharedOffer own_;
  std::vector<Peer> peers_;
  std::vector<int64_t> index_;  // into peers_, by coordinate
  MessageQueue<Outgoing> outgoing_;
  size_t receiving_ = 0;  // messages that are due
  bool closed_ = false;
};

}  // namespace tessera::detail
