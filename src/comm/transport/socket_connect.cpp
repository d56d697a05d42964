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
#include <optional>
#include <thread>
#include <utility>

#include "core/hash.h"

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;

// An address that swallows packets must not take the time of the others.
constexpr milliseconds kOneAddress{3000};
// How long a stranger is listened to, and to how many at a time.
constexpr milliseconds kStranger{5000};
constexpr milliseconds kPause{20};
constexpr size_t kMostStrangers = 64;

enum class Word : uint64_t {
  Hello = 0x7e55e7a0001,
  Welcome,
  Accepted,
};

// What is said when a connection is made.
struct Greeting {
  Word word;
  uint64_t meeting;
  int64_t from;
  int64_t to;

  friend bool operator==(const Greeting&, const Greeting&) = default;
};

Greeting greeting(Word word, const SocketParty& from, int64_t to) {
  return {
      word,
      hash_combine(0, std::string_view(from.meeting)),
      from.coordinate,
      to};
}

Greeting greeting(Word word, int64_t from, const SocketParty& to) {
  return {word, greeting(word, to, 0).meeting, from, to.coordinate};
}

int poll_time(Deadline until) {
  return static_cast<int>(
      std::clamp<int64_t>(time_left(until).count(), 0, 1 << 30));
}

bool wait_for(const Socket& socket, int16_t events, Deadline until) {
  pollfd file{socket.file(), events, 0};
  return poll(&file, 1, poll_time(until)) > 0;
}

bool say(const Socket& socket, const Greeting& greeting) {
  return send(socket.file(), &greeting, sizeof(greeting), MSG_NOSIGNAL) ==
         sizeof(greeting);
}

// A greeting that comes bit by bit.
struct Hearing {
  Greeting greeting{};
  size_t heard = 0;

  bool whole() const { return heard == sizeof(greeting); }
  // Takes what has come. False if nothing more will.
  bool take(const Socket& socket) {
    const auto got = recv(
        socket.file(),
        reinterpret_cast<char*>(&greeting) + heard,
        sizeof(greeting) - heard,
        MSG_DONTWAIT);
    if (got > 0) heard += static_cast<size_t>(got);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  }
};

bool hear(const Socket& socket, const Greeting& expected, Deadline until) {
  Hearing hearing;
  while (!hearing.whole()) {
    if (!wait_for(socket, POLLIN, until) || !hearing.take(socket)) return false;
  }
  return hearing.greeting == expected;
}

void prepare(const Socket& socket) {
  const int on = 1;
  setsockopt(socket.file(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(socket.file(), F_SETFL, fcntl(socket.file(), F_GETFL) | O_NONBLOCK);
}

std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> resolve(
    const std::string& address, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const auto service = std::to_string(port);
  if (getaddrinfo(address.c_str(), service.c_str(), &hints, &found) != 0) {
    found = nullptr;
  }
  return {found, &freeaddrinfo};
}

Socket connect_once(const addrinfo& address, Deadline until) {
  Socket made(
      socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) return {};
  if (connect(made.file(), address.ai_addr, address.ai_addrlen) != 0) {
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

Listener::Listener(const std::string& address, uint16_t port) {
  // One socket for both protocols where the system has IPv6.
  const std::vector<std::string> any{"::", "0.0.0.0"};
  for (const auto& where : address.empty() ? any : std::vector{address}) {
    const auto found = resolve(where, port, AI_PASSIVE | AI_NUMERICHOST);
    if (!found) continue;
    Socket made(socket(
        found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made) continue;
    const int off = 0;
    const int on = 1;
    // A port that was used a minute ago is free.
    if (port != 0) {
      setsockopt(made.file(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    }
    if (found->ai_family == AF_INET6) {
      setsockopt(made.file(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    auto* own = reinterpret_cast<sockaddr*>(&storage);
    if (bind(made.file(), found->ai_addr, found->ai_addrlen) != 0 ||
        listen(made.file(), SOMAXCONN) != 0 ||
        getsockname(made.file(), own, &length) != 0) {
      continue;
    }
    port_ = ntohs(
        own->sa_family == AF_INET6
            ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
            : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
    socket_ = std::move(made);
    return;
  }
  TORCH_CHECK(
      false,
      "no port to listen on",
      address.empty() ? "" : " at ",
      address,
      ": ",
      std::strerror(errno));
}

std::vector<SocketPeer> Listener::accept(
    const SocketParty& self,
    const std::vector<int64_t>& expected,
    Deadline until) const {
  // One that has connected and is not accepted yet. Once welcome, by its
  // coordinate, it is a rank of the meeting and has until the deadline.
  struct Comer {
    Socket socket;
    Deadline until;
    std::optional<int64_t> welcome{};
    Hearing hearing{};
  };
  std::vector<Comer> comers;
  std::vector<SocketPeer> accepted;
  std::vector<int64_t> left = expected;
  // Whether the comer may stay.
  const auto listen_to = [&](Comer& comer) {
    if (!comer.hearing.take(comer.socket)) return false;
    if (!comer.hearing.whole()) return true;
    const auto heard = std::exchange(comer.hearing, {}).greeting;
    const auto who = std::find(left.begin(), left.end(), heard.from);
    const auto due = comer.welcome ? Word::Accepted : Word::Hello;
    if (who == left.end() || heard != greeting(due, heard.from, self) ||
        comer.welcome.value_or(heard.from) != heard.from) {
      return false;
    }
    if (!comer.welcome) {
      comer.welcome = heard.from;
      comer.until = until;
      return say(comer.socket, greeting(Word::Welcome, self, heard.from));
    }
    accepted.push_back({heard.from, std::move(comer.socket)});
    left.erase(who);
    return false;
  };
  // Who has come first and has not said a word yet.
  const auto drop_stranger = [&] {
    const auto first = std::find_if(
        comers.begin(), comers.end(), [](const auto& c) { return !c.welcome; });
    if (first == comers.end()) std::this_thread::sleep_for(kPause);
    if (first != comers.end()) comers.erase(first);
  };
  while (!left.empty() && Clock::now() < until) {
    auto next = until;
    std::vector<pollfd> files;
    for (const auto& comer : comers) {
      files.push_back({comer.socket.file(), POLLIN, 0});
      next = std::min(next, comer.until);
    }
    files.push_back({socket_.file(), POLLIN, 0});
    poll(files.data(), files.size(), poll_time(next));
    for (size_t i = comers.size(); i-- > 0;) {
      const bool stays = (files[i].revents == 0 || listen_to(comers[i])) &&
                         Clock::now() < comers[i].until;
      if (!stays) comers.erase(comers.begin() + static_cast<int64_t>(i));
    }
    if (files.back().revents == 0) continue;
    Socket made(accept4(
        socket_.file(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (made) {
      prepare(made);
      const auto patience = std::min(until, Clock::now() + kStranger);
      comers.push_back({std::move(made), patience, {}, {}});
      if (comers.size() > left.size() + kMostStrangers) drop_stranger();
    } else if (errno == EMFILE || errno == ENFILE) {
      drop_stranger();
    }
  }
  return accepted;
}

Socket connect_to(
    const std::vector<std::string>& addresses,
    uint16_t port,
    const SocketParty& self,
    int64_t other,
    Deadline until) {
  do {
    for (const auto& address : addresses) {
      const auto patience = addresses.size() == 1
                                ? until
                                : std::min(until, Clock::now() + kOneAddress);
      const auto found = resolve(address, port, AI_NUMERICHOST);
      if (!found) continue;
      Socket made = connect_once(*found, patience);
      if (made && say(made, greeting(Word::Hello, self, other)) &&
          hear(made, greeting(Word::Welcome, other, self), patience) &&
          say(made, greeting(Word::Accepted, self, other))) {
        return made;
      }
    }
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < until);
  return {};
}

bool can_connect(const std::string& host, uint16_t port, Deadline until) {
  const auto found = resolve(host, port, 0);
  for (const auto* one = found.get(); one != nullptr; one = one->ai_next) {
    if (connect_once(*one, until)) return true;
  }
  return false;
}

std::string loopback_of(const std::string& host) {
  const auto found = resolve(host, 0, 0);
  if (!found || found->ai_next != nullptr) return "";
  char text[NI_MAXHOST];
  if (getnameinfo(
          found->ai_addr,
          found->ai_addrlen,
          text,
          sizeof(text),
          nullptr,
          0,
          NI_NUMERICHOST) != 0) {
    return "";
  }
  const std::string number = text;
  return number.starts_with("127.") || number == "::1" ? number : "";
}

}  // namespace tessera::detail
