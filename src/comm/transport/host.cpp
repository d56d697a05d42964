#include "comm/transport/host.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "comm/transport/sockets.h"

namespace tessera::detail {

namespace {

std::string text_of(const sockaddr* address) {
  const socklen_t length = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6)
                                                          : sizeof(sockaddr_in);
  char text[NI_MAXHOST];
  if (getnameinfo(
          address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) !=
      0) {
    return "";
  }
  return text;
}

// The address from which packets to `host` would leave; none is sent.
std::string source_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (host.empty() || getaddrinfo(host.c_str(), "9", &hints, &found) != 0) {
    return "";
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(
      found, &freeaddrinfo);
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    const Socket probe(socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    auto* address = reinterpret_cast<sockaddr*>(&own);
    if (probe && connect(probe.file(), one->ai_addr, one->ai_addrlen) == 0 &&
        getsockname(probe.file(), address, &length) == 0) {
      return text_of(address);
    }
  }
  return "";
}

bool is_local_only(const std::string& address) {
  return address.starts_with("127.") || address == "::1" ||
         address.starts_with("fe80:");
}

}  // namespace

Host Host::of_this_process() {
  Host host;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> host.boot;
  struct stat network {};
  if (stat("/proc/self/ns/net", &network) == 0) {
    host.network =
        std::to_string(network.st_dev) + ":" + std::to_string(network.st_ino);
  }
  return host;
}

std::vector<std::string> own_addresses(const std::string& towards) {
  const char* wanted = std::getenv("TESSERA_SOCKET_IFNAME");
  if (wanted == nullptr) wanted = std::getenv("GLOO_SOCKET_IFNAME");
  std::vector<std::string> addresses;
  const auto add = [&](const std::string& address) {
    const bool known = std::find(addresses.begin(), addresses.end(), address) !=
                       addresses.end();
    if (!address.empty() && !known) addresses.push_back(address);
  };
  if (wanted == nullptr) {
    const auto source = source_towards(towards);
    if (!is_local_only(source)) add(source);
  }
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) == 0) {
    const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(
        found, &freeifaddrs);
    for (const int family : {AF_INET, AF_INET6}) {
      for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
        if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family ||
            (one->ifa_flags & IFF_UP) == 0) {
          continue;
        }
        const auto address = text_of(one->ifa_addr);
        if (wanted != nullptr ? std::string(wanted) == one->ifa_name
                              : !is_local_only(address)) {
          add(address);
        }
      }
    }
  }
  if (addresses.empty()) addresses.emplace_back("127.0.0.1");
  return addresses;
}

}  // namespace tessera::detail
