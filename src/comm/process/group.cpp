#include "comm/process/group.h"

#include <c10/util/Exception.h>

#include "comm/errors.h"
#include "comm/flight_recorder.h"
#include "comm/process/connect.h"
#include "comm/process/rendezvous.h"

namespace tessera::detail {

std::string describe_group(
    const std::vector<int64_t>& ranks, const Call& call) {
  std::string text = "group [";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  text += "] (";
  if (call.mesh == nullptr) return text + "the world)";
  if (call.dim >= 0) {
    const auto names = call.mesh->dim_names();
    text += "mesh dim ";
    text +=
        names.empty() ? std::to_string(call.dim) : "'" + names[call.dim] + "'";
    text += " of ";
  }
  return text + call.mesh->str() + ")";
}

std::string tagged_rank(const Call& call, int64_t rank) {
  return c10::str("[", name(call.collective), "] rank ", rank);
}

Group::Group(const GroupRequest& request, const Call& call)
    : ranks_(request.ranks),
      coordinate_(request.coordinate),
      flight_group_(new_flight_group(request.name, request.ranks)),
      board_(*request.board),
      calls_(board_.join(request.name)),
      drawn_(request.drawn) {
  write_flights_on_signal(ranks_[coordinate_]);
  const auto begin = Clock::now();
  const auto waited = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               Clock::now() - begin)
        .count();
  };
  const int64_t rank = ranks_[coordinate_];
  Connection made;
  try {
    made = connect(request);
  } catch (const std::exception& error) {
    TORCH_CHECK(
        false,
        tagged_rank(call, rank),
        " could not connect to ",
        describe_group(ranks_, call),
        " in ",
        waited(),
        " ms: ",
        cause_of(error),
        ". Check that every rank of it is running and can be reached",
        flight_report(rank));
  }
  TORCH_CHECK(
      made.missing.empty(),
      tagged_rank(call, rank),
      " waited ",
      waited(),
      " ms in ",
      describe_group(ranks_, call),
      ": ",
      name_ranks(made.missing),
      " did not come. Check that every rank of the group is running and calls "
      "the same collectives in the same order; where a rank may be late, give "
      "the World a longer timeout",
      flight_report(rank));
  transports_ = std::move(made.transports);
  route_ = std::move(made.route);
}

Group::~Group() = default;

std::unique_ptr<WaitBoard::LongWait> Group::long_wait(
    const Call& call,
    uint32_t sequence,
    const std::vector<int64_t>& peers) const {
  return std::make_unique<WaitBoard::LongWait>(
      board_, calls_, sequence, name(call.collective), ranks_of(peers));
}

std::vector<int64_t> Group::ranks_of(const std::vector<int64_t>& peers) const {
  std::vector<int64_t> ranks;
  ranks.reserve(peers.size());
  for (const int64_t c : peers) ranks.push_back(ranks_[c]);
  return ranks;
}

void Group::break_off(const std::string& error, const std::string& root) {
  error_ = error;
  const auto told = shortened(root, Transport::kMostErrorBytes);
  board_.fail(calls_, told);
  for (const auto& transport : transports_) transport->close(told);
}

}  // namespace tessera::detail
