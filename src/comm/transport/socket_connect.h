// Connects the ranks of a group by TCP, each pair by one connection.
//
// Anybody may connect to a listener, and anybody may listen where a peer was
// expected. So both sides say who they are before the connection counts: the
// one that connects says hello, the listener welcomes it, and the first accepts
// the welcome. It may have given up meanwhile and come again by another
// address; only one of its connections is accepted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/transport/sockets.h"
#include "comm/transport/transport.h"

namespace tessera::detail {

// Who connects: a rank of a meeting, whose name nobody else knows.
struct SocketParty {
  std::string meeting;
  int64_t coordinate;
};

// Where this rank listens while its group connects.
class Listener {
 public:
  // At one address of this machine, a number, or, if it is empty, at all; at a
  // port that the system gives if it is 0. Throws c10::Error where there is
  // none.
  explicit Listener(const std::string& address, uint16_t port = 0);

  uint16_t port() const { return port_; }

  // Waits until each of the expected coordinates has connected to `self`, or
  // until the deadline: those that have. All others are turned away; none makes
  // them wait.
  std::vector<SocketPeer> accept(
      const SocketParty& self,
      const std::vector<int64_t>& expected,
      Deadline until) const;
  // The listening socket, for the caller to close.
  int release() { return socket_.release(); }

 private:
  Socket socket_;
  uint16_t port_ = 0;
};

// Connects to the listener of the rank at coordinate `other` of the meeting, at
// the first of the addresses where it answers. Nothing if none does until the
// deadline.
Socket connect_to(
    const std::vector<std::string>& addresses,
    uint16_t port,
    const SocketParty& self,
    int64_t other,
    Deadline until);

// Whether somebody listens there: at a name or a number.
bool can_connect(const std::string& host, uint16_t port, Deadline until);

// The one loopback address that `host` is, as a number; "" if it is another
// address or several.
std::string loopback_of(const std::string& host);

}  // namespace tessera::detail
