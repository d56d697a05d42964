// Which machine, and which network of it, a process is on. Host names do not
// tell: containers and fresh machines are all called localhost.
#pragma once

#include <string>
#include <vector>

namespace tessera::detail {

struct Host {
  std::string boot;  // the running kernel: those of one may share memory
  std::string
      network;  // its namespace: those of one share the loopback address

  bool same_machine(const Host& other) const {
    return !boot.empty() && boot == other.boot;
  }
  bool same_network(const Host& other) const {
    return same_machine(other) && !network.empty() && network == other.network;
  }

  static Host of_this_process();
};

// Addresses at which processes of other networks may reach this one, as
// numbers, the likeliest first: those of the interface that
// TESSERA_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names, or else the one that leads
// to `towards` (a host name; may be empty), then all others. Never empty.
std::vector<std::string> own_addresses(const std::string& towards);

}  // namespace tessera::detail
