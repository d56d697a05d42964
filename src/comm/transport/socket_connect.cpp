#include "comm/transport/socket_connect.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "core/hash.h"

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;

// An address that swallows packets must not take the time of the others.
constexpr milliseconds kOneAddress{3000};
constexpr milliseconds kStranger{1000};

// What is said when a connection is made, by either side.
struct Greeting {
  uint64_t meeting;
  int64_t coordinate;
};

Greeting greeting(const std::string& meeting, int64_t coordinate) {
  return {hash_combine(0, std::string_view(meeting)), coordinate};
}

int left_until(Deadline until) {
  const auto left =
      std::chrono::duration_cast<milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

bool wait_for(const Socket& socket, int16_t events, Deadline until) {
  pollfd file{socket.file(), events, 0};
  return poll(&file, 1, left_until(until)) > 0;
}

bool say(const Socket& socket, const Greeting& greeting) {
  return send(socket.file(), &greeting, sizeof(greeting), MSG_NOSIGNAL) ==
         sizeof(greeting);
}

bool hear(const Socket& socket, Greeting& greeting, Deadline until) {
  size_t heard = 0;
  while (heard < sizeof(greeting) && wait_for(socket, POLLIN, until)) {
    const auto got = recv(
        socket.file(),
        reinterpret_cast<char*>(&greeting) + heard,
        sizeof(greeting) - heard,
        MSG_DONTWAIT);
    if (got <= 0) return false;
    heard += static_cast<size_t>(got);
  }
  return heard == sizeof(greeting);
}

void prepare(const Socket& socket) {
  const int on = 1;
  setsockopt(socket.file(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(socket.file(), F_SETFL, fcntl(socket.file(), F_GETFL) | O_NONBLOCK);
}

Socket connect_once(const std::string& address, uint16_t port, Deadline until) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(
          address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(
      found, &freeaddrinfo);
  Socket made(
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) return {};
  if (connect(made.file(), found->ai_addr, found->ai_addrlen) != 0) {
    int error = errno;
    socklen_t length = sizeof(error);
    if (error != EINPROGRESS || !wait_for(made, POLLOUT, until) ||
        getsockopt(made.file(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 ||
        error != 0) {
      return {};
    }
  }
  prepare(made);
  return made;
}

}  // namespace

Listener::Listener() {
  // One socket for both protocols where the system has IPv6.
  for (const int family : {AF_INET6, AF_INET}) {
    Socket made(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made) continue;
    sockaddr_storage storage{};
    socklen_t length =
        family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    storage.ss_family = static_cast<sa_family_t>(family);
    const int off = 0;
    if (family == AF_INET6) {
      setsockopt(made.file(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    auto* address = reinterpret_cast<sockaddr*>(&storage);
    if (bind(made.file(), address, length) != 0 ||
        listen(made.file(), SOMAXCONN) != 0 ||
        getsockname(made.file(), address, &length) != 0) {
      continue;
    }
    port_ = ntohs(
        family == AF_INET6
            ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
            : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
    socket_ = std::move(made);
    return;
  }
  TORCH_CHECK(false, "no port to listen on: ", std::strerror(errno));
}

std::optional<SocketPeer> Listener::accept(
    const std::string& meeting, Deadline until) const {
  while (wait_for(socket_, POLLIN, until)) {
    Socket made(accept4(socket_.file(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!made) continue;
    prepare(made);
    Greeting heard{};
    const auto patience = std::min(until, Clock::now() + kStranger);
    if (!hear(made, heard, patience) ||
        heard.meeting != greeting(meeting, 0).meeting || !say(made, heard)) {
      continue;
    }
    return SocketPeer{heard.coordinate, std::move(made)};
  }
  return std::nullopt;
}

Socket connect_to(
    const std::vector<std::string>& addresses,
    uint16_t port,
    const std::string& meeting,
    int64_t self,
    Deadline until) {
  const Greeting ours = greeting(meeting, self);
  do {
    for (const auto& address : addresses) {
      const auto patience = addresses.size() == 1
                                ? until
                                : std::min(until, Clock::now() + kOneAddress);
      Socket made = connect_once(address, port, patience);
      Greeting theirs{};
      // Echoed by the one that was meant, not by whoever has that address.
      if (made && say(made, ours) && hear(made, theirs, patience) &&
          theirs.meeting == ours.meeting &&
          theirs.coordinate == ours.coordinate) {
        return made;
      }
    }
    std::this_thread::sleep_for(milliseconds(20));
  } while (Clock::now() < until);
  return {};
}

}  // namespace tessera::detail
