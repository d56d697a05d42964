#include "comm/group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "comm/errors.h"
#include "comm/rendezvous.h"

namespace tessera::detail {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Messages of ours, among those that others may send over the same backend; the
// lanes have the tags from here on.
constexpr int kTag = 0x7e55;

milliseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
}

// "group [0, 1] (mesh dim 'tp' of DeviceMesh(...))"
std::string describe(const std::vector<int64_t>& ranks, const Call& call) {
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

}  // namespace

Group::Group(GroupRequest request, const Call& call)
    : ranks_(request.ranks), coordinate_(request.coordinate) {
  const auto begin = Clock::now();
  const int64_t rank = ranks_[coordinate_];
  std::vector<int64_t> missing;
  try {
    // Ours first: unlike the backend, it says who is missing.
    missing = meet(*request.store, "member", rank, ranks_, request.timeout);
    if (missing.empty()) {
      request.timeout =
          std::max(request.timeout - since(begin), milliseconds(1));
      backend_ = make_gloo(request);
    }
  } catch (const c10::NotImplementedError&) {
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK(
        false,
        "[",
        call.collective,
        "] rank ",
        rank,
        " could not connect to ",
        describe(ranks_, call),
        " in ",
        since(begin).count(),
        " ms: ",
        cause_of(error),
        ". Check that every rank of it is running and can be reached");
  }
  TORCH_CHECK(
      missing.empty(),
      "[",
      call.collective,
      "] rank ",
      rank,
      " waited ",
      since(begin).count(),
      " ms in ",
      describe(ranks_, call),
      ": ",
      name_ranks(missing),
      " did not come. Check that every rank of the group is running and calls "
      "the same collectives in the same order; where a rank may be late, give "
      "the World a longer timeout");
}

Exchange::Exchange(Group& group, const Call& call)
    : group_(group), call_(call), begin_(Clock::now()) {
  messages_.reserve(2 * group.ranks().size());
}

template <typename Start>
size_t Exchange::start(int64_t peer, const at::Tensor& tensor, Start start) {
  if (tensor.numel() == 0) {
    messages_.push_back({nullptr, peer});
    return messages_.size() - 1;
  }
  std::vector<at::Tensor> tensors{tensor};
  try {
    messages_.push_back({start(tensors, static_cast<int>(peer)), peer});
  } catch (const std::exception& error) {
    fail(peer, error);
  }
  return messages_.size() - 1;
}

size_t Exchange::receive(int64_t peer, const at::Tensor& into, int lane) {
  return start(peer, into, [&](std::vector<at::Tensor>& tensors, int from) {
    return group_.backend_.backend->recv(tensors, from, kTag + lane);
  });
}

size_t Exchange::send(int64_t peer, const at::Tensor& from, int lane) {
  return start(peer, from, [&](std::vector<at::Tensor>& tensors, int to) {
    return group_.backend_.backend->send(tensors, to, kTag + lane);
  });
}

void Exchange::wait(size_t message) {
  auto& [work, peer] = messages_[message];
  if (!work) return;
  // Zero would mean for ever.
  const auto left = std::max(call_.timeout - since(begin_), milliseconds(1));
  try {
    work->wait(left);
  } catch (const std::exception& error) {
    fail(peer, error);
  }
  work.reset();
}

void Exchange::finish() {
  for (size_t i = 0; i < messages_.size(); ++i) wait(i);
  messages_.clear();
}

void Exchange::fail(int64_t peer, const std::exception& error) const {
  const auto waited = since(begin_);
  const bool late = waited >= call_.timeout;
  TORCH_CHECK(
      false,
      "[",
      call_.collective,
      "] rank ",
      group_.ranks()[group_.coordinate()],
      late ? " waited " : " lost the connection after ",
      waited.count(),
      " ms in ",
      describe(group_.ranks(), call_),
      late ? " for rank " : " to rank ",
      group_.ranks()[peer],
      ": ",
      cause_of(error),
      ". Check that every rank of the group is running and calls the same "
      "collectives in the same order with the same sizes",
      late ? "; where a rank may be late, give the World a longer timeout"
           : "; what ended the other rank stands in its own output");
}

}  // namespace tessera::detail
