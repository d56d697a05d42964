#include "embedding/handshake.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace tessera::detail {

namespace {

// Every rank of the group gets what each other one has for it; a message is
// made of int64s.
template <class Message>
std::vector<std::vector<Message>> swap_messages(
    MeshDim at, c10::ArrayRef<std::vector<Message>> messages) {
  constexpr int64_t kWordBytes = 8;
  constexpr int64_t kWords = sizeof(Message) / kWordBytes;
  const int64_t ranks = at.mesh.size(at.dim);
  Shards words;
  for (const auto& mine : messages) {
    words.push_back(at::empty({ranks, kWords}, at::kLong));
    std::memcpy(
        words.back().mutable_data_ptr<int64_t>(),
        mine.data(),
        mine.size() * sizeof(Message));
  }
  const std::vector<Parts> one_each(messages.size(), Parts(ranks, 1));
  std::vector<std::vector<Message>> told;
  for (const auto& theirs :
       collectives(at.mesh).all_to_all_rows(at, words, one_each, one_each)) {
    told.emplace_back(ranks);
    std::memcpy(
        static_cast<void*>(told.back().data()),
        theirs.template const_data_ptr<int64_t>(),
        ranks * sizeof(Message));
  }
  return told;
}

bool any_flag(const BagRequests& told, int64_t flag) {
  return std::any_of(told.begin(), told.end(), [&](const BagRequest& request) {
    return (request.flags & flag) != 0;
  });
}

// Only how many rows each rank asks for: 8 bytes a pair, -1 of a rank with a
// local error. Other groups of the mesh do not see that, and agree first.
Handshake tell_rows(
    MeshDim at, c10::ArrayRef<BagRequests> requests, const LocalError& error) {
  auto& comm = collectives(at.mesh);
  if (at.mesh.ndim() > 1) {
    comm.agree(at.mesh, error.text, error.kind);
  }
  std::vector<std::vector<int64_t>> messages;
  for (const auto& mine : requests) {
    messages.emplace_back();
    for (const auto& request : mine) {
      messages.back().push_back(error.text.empty() ? request.rows : -1);
    }
  }
  Handshake result;
  bool failed = false;
  for (const auto& theirs : swap_messages<int64_t>(at, messages)) {
    result.told.emplace_back();
    for (const int64_t rows : theirs) {
      failed |= rows < 0;
      result.told.back().emplace_back().rows = rows;
    }
  }
  if (failed) {
    comm.agree(at.mesh, error.text, error.kind);
  }
  return result;
}

}  // namespace

Parts each_of(const BagRequests& requests, int64_t BagRequest::*number) {
  Parts numbers;
  for (const auto& request : requests) {
    numbers.push_back(request.*number);
  }
  return numbers;
}

BagRequests bag_requests(
    const LookupRequest& request, size_t local, const LocalError& error) {
  const bool weighted = request.inputs[local].per_sample_weights.has_value();
  BagRequest told;
  told.flags = (error.text.empty() ? 0 : BagRequest::kLocalError) |
               (weighted ? BagRequest::kPerSampleWeights : 0) |
               (request.wanted.per_sample_weights ? BagRequest::kGradient : 0) |
               (request.wanted.any ? BagRequest::kRecorded : 0);
  told.fingerprint = request.query.fingerprint();
  return BagRequests(request.table->mesh.size(request.mesh_dim), told);
}

Handshake shake_hands(
    MeshDim at,
    c10::ArrayRef<BagRequests> requests,
    const LocalError& error,
    const LookupCaller& caller) {
  if (caller.asks_alike) {
    return tell_rows(at, requests, error);
  }
  Handshake result;
  result.told = swap_messages<BagRequest>(at, requests);
  bool failed = false;
  bool alike = true;
  bool recorded_alike = true;
  for (const auto& told : result.told) {
    failed |= any_flag(told, BagRequest::kLocalError);
    result.sum = {};
    for (const auto& request : told) {
      alike &= request.fingerprint == told[0].fingerprint;
      recorded_alike &=
          ((request.flags ^ told[0].flags) & BagRequest::kRecorded) == 0;
      result.sum.all_bags += request.all_bags;
      result.sum.all_indices += request.all_indices;
      result.sum.all_rows += request.all_rows;
      result.sum.longest = std::max(result.sum.longest, request.longest);
    }
    result.settled = {
        .silent = result.sum.all_indices + result.sum.all_rows == 0,
        .per_sample_weights = any_flag(told, BagRequest::kPerSampleWeights),
        .weights_need_grad = any_flag(told, BagRequest::kGradient),
        .padding = any_flag(told, BagRequest::kPadding)};
  }
  if (failed) {
    collectives(at.mesh).agree(at.mesh, error.text, error.kind);
  }
  // Everyone sees all fingerprints: all ranks throw.
  TORCH_CHECK_VALUE(
      alike,
      "[",
      caller.name,
      "] the ranks were given different options (mode, padding_idx, max_norm, "
      "norm_type, strategy or update) or different offsets: give every rank "
      "the same");
  // A rank without a backward pass would keep the others waiting in theirs.
  TORCH_CHECK_VALUE(
      recorded_alike,
      "[",
      caller.name,
      "] some ranks' results require grad and others' do not: let the weight "
      "require grad on every rank or on none, and per_sample_weights on some "
      "ranks only if the weight does too");
  return result;
}

}  // namespace tessera::detail
