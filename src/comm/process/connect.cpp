#include "comm/process/connect.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "comm/process/bounded.h"
#include "comm/process/rendezvous.h"
#include "comm/transport/shared_memory.h"
#include "comm/transport/socket_connect.h"

namespace tessera::detail {

namespace {

// Where ranks of one network reach each other, which nobody else does.
constexpr const char* kLoopback = "127.0.0.1";

// What each rank says of itself when the group meets, a line each.
struct Introduction {
  Host host;
  std::string buffer;
  std::string rings;

  std::string str() const {
    return host.boot + "\n" + host.network + "\n" + buffer + "\n" + rings;
  }
  static Introduction read(const std::string& text) {
    Introduction read;
    std::istringstream in(text);
    std::getline(in, read.host.boot);
    std::getline(in, read.host.network);
    std::getline(in, read.buffer);
    std::getline(in, read.rings);
    return read;
  }
};

class Connecting {
 public:
  explicit Connecting(const GroupRequest& request)
      : request_(request),
        size_(request.ranks.size()),
        me_(static_cast<size_t>(request.coordinate)),
        until_(from_now(request.timeout)) {}

  Connection run() {
    auto own = SharedOffer::make(static_cast<int64_t>(size_));
    Introduction self{request_.host, "", ""};
    if (own.rings) {
      self.buffer = own.buffer->name();
      self.rings = own.rings->name();
    }
    meeting_ =
        meet(request_.store, request_.ranks, me_, self.str(), request_.timeout);
    Connection made;
    made.missing = meeting_.missing;
    if (!made.missing.empty()) return made;
    for (const auto& text : meeting_.texts) {
      others_.push_back(Introduction::read(text));
    }
    made.route.assign(size_, nullptr);
    auto near = own.rings ? open_shared() : std::vector<SharedPeer>(size_);
    keep_mutual(near);
    if (own.rings) own.rings->close_file();
    add_shared(made, std::move(own), std::move(near));
    add_sockets(made);
    return made;
  }

 private:
  // The memory of the ranks on this machine, by coordinate.
  std::vector<SharedPeer> open_shared() const {
    std::vector<SharedPeer> peers(size_);
    for (size_t c = 0; c < size_; ++c) {
      const auto& other = others_[c];
      if (c == me_ || !other.host.same_machine(request_.host) ||
          other.rings.empty()) {
        continue;
      }
      auto rings = MessageRings::open(other.rings, static_cast<int64_t>(size_));
      auto process = PeerProcess::open(other.buffer);
      if (rings && process) {
        peers[c] = {
            static_cast<int64_t>(c), std::move(rings), std::move(process)};
      }
    }
    return peers;
  }

  // Both sides must reach the other's.
  void keep_mutual(std::vector<SharedPeer>& near) {
    std::string opened(size_, '-');
    for (size_t c = 0; c < size_; ++c) {
      if (near[c].rings) opened[c] = '+';
    }
    const auto all =
        tell_all(meeting_, "opened", me_, opened, time_left(until_));
    for (size_t c = 0; c < size_; ++c) {
      if (all[c].size() != size_ || all[c][me_] != '+') near[c] = {};
    }
  }

  void add_shared(
      Connection& made, SharedOffer own, std::vector<SharedPeer> near) const {
    std::erase_if(near, [](const SharedPeer& peer) { return !peer.rings; });
    if (near.empty()) return;
    std::vector<int64_t> reached;
    reached.reserve(near.size());
    for (const auto& peer : near) reached.push_back(peer.coordinate);
    made.transports.push_back(std::make_unique<SharedMemoryTransport>(
        request_.coordinate,
        static_cast<int64_t>(size_),
        std::move(own),
        std::move(near)));
    for (const int64_t c : reached) made.route[c] = made.transports[0].get();
  }

  // Of each pair the later rank connects, the earlier one listens.
  void add_sockets(Connection& made) const {
    std::vector<int64_t> earlier;
    std::vector<int64_t> later;
    for (size_t c = 0; c < size_; ++c) {
      if (c == me_ || made.route[c] != nullptr) continue;
      (c < me_ ? earlier : later).push_back(static_cast<int64_t>(c));
    }
    if (earlier.empty() && later.empty()) return;
    std::optional<Listener> listener;
    if (!later.empty()) listener = listen_for(later);
    std::vector<SocketPeer> peers;
    peers.reserve(earlier.size() + later.size());
    for (const int64_t c : earlier) peers.push_back({c, connect_to_peer(c)});
    if (listener) {
      for (auto& peer : listener->accept(party(), later, until_)) {
        std::erase(later, peer.coordinate);
        peers.push_back(std::move(peer));
      }
      check_all_connected(later);
    }
    std::vector<int64_t> reached;
    reached.reserve(peers.size());
    for (const auto& peer : peers) reached.push_back(peer.coordinate);
    made.transports.push_back(std::make_unique<SocketTransport>(
        static_cast<int64_t>(size_), std::move(peers)));
    for (const int64_t c : reached) {
      made.route[c] = made.transports.back().get();
    }
  }

  void check_all_connected(const std::vector<int64_t>& missing) const {
    std::vector<int64_t> ranks;
    ranks.reserve(missing.size());
    for (const int64_t c : missing) ranks.push_back(request_.ranks[c]);
    TORCH_CHECK(ranks.empty(), name_ranks(ranks), " did not connect in time");
  }

  SocketParty party() const { return {meeting_.name, request_.coordinate}; }

  bool on_this_network(size_t c) const {
    return others_[c].host.same_network(request_.host);
  }

  // Where only one address leads the peers here, at this one only.
  Listener listen_for(const std::vector<int64_t>& peers) const {
    const auto own = own_addresses(request_.towards);
    const auto near = std::count_if(peers.begin(), peers.end(), [&](int64_t c) {
      return on_this_network(c);
    });
    std::vector<std::string> used;
    if (near > 0) used.emplace_back(kLoopback);
    if (near < static_cast<int64_t>(peers.size())) {
      used.insert(used.end(), own.begin(), own.end());
    }
    Listener listener(used.size() == 1 ? used[0] : "");
    std::string text = std::to_string(listener.port());
    for (const auto& address : own) text += " " + address;
    meeting_.store->set(
        "address/" + std::to_string(me_),
        std::vector<uint8_t>(text.begin(), text.end()));
    return listener;
  }

  Socket connect_to_peer(size_t c) const {
    std::istringstream in(hear(
        *meeting_.store, "address/" + std::to_string(c), time_left(until_)));
    uint16_t port = 0;
    std::vector<std::string> addresses;
    in >> port;
    for (std::string address; in >> address;) addresses.push_back(address);
    if (on_this_network(c)) addresses = {kLoopback};
    auto made =
        connect_to(addresses, port, party(), static_cast<int64_t>(c), until_);
    TORCH_CHECK(
        made,
        "rank ",
        request_.ranks[c],
        " does not answer at ",
        c10::str(addresses),
        " (set TESSERA_SOCKET_IFNAME to the network interface that leads to "
        "the others)");
    return made;
  }

  const GroupRequest& request_;
  const size_t size_;
  const size_t me_;
  const Deadline until_;
  Meeting meeting_;
  std::vector<Introduction> others_;
};

}  // namespace

Meeting meet_group(const GroupRequest& request, const std::string& text) {
  auto meeting =
      within<Meeting>(until_given_up(request.timeout), [request, text] {
        return meet(
            request.store,
            request.ranks,
            static_cast<size_t>(request.coordinate),
            text,
            request.timeout);
      });
  TORCH_CHECK(
      meeting.missing.empty(), name_ranks(meeting.missing), " did not come");
  return meeting;
}

Connection connect(const GroupRequest& request) {
  // In std::function, which wants to be copied: the result cannot be.
  auto made = within<std::shared_ptr<Connection>>(
      until_given_up(request.timeout), [request] {
        return std::make_shared<Connection>(Connecting(request).run());
      });
  return std::move(*made);
}

}  // namespace tessera::detail
