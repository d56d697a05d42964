// Connects the ranks of a group by TCP, each pair by one connection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport/sockets.h"
#include "comm/transport/transport.h"

namespace tessera::detail {

// Where this rank listens while its group connects.
class Listener {
 public:
  // Throws c10::Error where the system gives no port.
  Listener();

  uint16_t port() const { return port_; }

  // The next that connects and says `meeting`, until the deadline: who it is.
  // Others are turned away.
  std::optional<SocketPeer> accept(
      const std::string& meeting, Deadline until) const;

 private:
  Socket socket_;
  uint16_t port_ = 0;
};

// Connects to the listener of another rank of the meeting, at the first of the
// addresses where it answers. Nothing if none does until the deadline.
Socket connect_to(
    const std::vector<std::string>& addresses,
    uint16_t port,
    const std::string& meeting,
    int64_t self,
    Deadline until);

}  // namespace tessera::detail
