// A Transport moves the messages of one group between this rank and some of
// its peers. There is one for ranks that share memory with this one and one for
// those reached over sockets; an Messages uses both alike.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/deadline.h"
#include "comm/transport/message_tag.h"

namespace tessera::detail {

// Nothing more can be received from a peer.
class PeerError : public std::runtime_error {
 public:
  enum class Kind {
    Lost,       // it has gone
    Failed,     // it has said why it stops: the text is its own
    Disagrees,  // it has sent what belongs to another call
  };

  PeerError(int64_t peer, Kind kind, const std::string& text)
      : std::runtime_error(text), peer_(peer), kind_(kind) {}
  int64_t peer() const { return peer_; }
  Kind kind() const { return kind_; }

 private:
  int64_t peer_;
  Kind kind_;
};

// Peers are named by their coordinates in the group. Messages from one rank to
// another arrive in the order in which they were sent, and are received in the
// order in which receive() was called. Nothing but progress() waits. For one
// thread at a time. What is lost is thrown as PeerError; after that, and after
// close(), a transport is of no more use.
class Transport {
 public:
  // How much of an error the peers are told.
  static constexpr size_t kMostErrorBytes = 1000;

  virtual ~Transport() = default;

  // Throws if a peer has closed its side with an error since the last call.
  virtual void check_peers() = 0;
  // Starts to send tag.bytes bytes, at least one, to each of the peers. The
  // memory must stay as it is until idle().
  virtual void send(
      c10::ArrayRef<int64_t> peers,
      const MessageTag& tag,
      const void* data) = 0;
  // Starts to receive a message that must have this tag.
  virtual void receive(int64_t peer, const MessageTag& tag, void* into) = 0;
  // How many messages of the peer have been received so far.
  virtual uint64_t received(int64_t peer) const = 0;
  // Whether everything that was started is done.
  virtual bool idle() const = 0;
  // Moves what can be moved. If that is nothing, waits until something can be,
  // at most until the deadline. Returns whether anything was moved, be it
  // between a peer on whom something waits and another rank.
  virtual bool progress(Deadline until) = 0;
  // The peers on whom something that was started waits.
  virtual std::vector<int64_t> awaited() const = 0;
  // Tells the peers that nothing more will come: because of an error, or, if
  // that is empty, since this rank has left the group.
  virtual void close(const std::string& error) noexcept = 0;
};

}  // namespace tessera::detail
