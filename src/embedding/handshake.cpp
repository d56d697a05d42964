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
  constexpr int64_t kWords = sizeof(Message) / sizeof(int64_t);
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

}  // namespace

std::vector<Parts> shake_hands(
    MeshDim at, std::vector<Parts> counts, const LocalError& error) {
  auto& comm = collectives(at.mesh);
  if (at.mesh.ndim() > 1) {
    comm.agree(at.mesh, error.text, error.kind);
  }
  std::vector<std::vector<int64_t>> messages;
  for (const auto& mine : counts) {
    // A rank without counts has an error.
    messages.emplace_back(mine.begin(), mine.end());
    messages.back().resize(at.mesh.size(at.dim), -1);
  }
  bool failed = false;
  std::vector<Parts> told;
  for (const auto& theirs : swap_messages<int64_t>(at, messages)) {
    failed |= *std::min_element(theirs.begin(), theirs.end()) < 0;
    told.emplace_back(theirs.begin(), theirs.end());
  }
  if (failed) {
    comm.agree(at.mesh, error.text, error.kind);
  }
  return told;
}

Parts each_of(const BagRequests& requests, int64_t BagRequest::*number) {
  Parts numbers;
  for (const auto& request : requests) {
    numbers.push_back(request.*number);
  }
  return numbers;
}

BagRequests bag_requests(
    const LookupRequest& request, size_t local, const LocalError& error) {
  const bool weighted = request.inputs[local].per_sample_weights.defined();
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
    const char* caller) {
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
      caller,
      "] the ranks were given different options (mode, padding_idx, max_norm, "
      "norm_type, strategy or update) or different offsets: give every rank "
      "the same");
  // A rank without a backward pass would keep the others waiting in theirs.
  TORCH_CHECK_VALUE(
      recorded_alike,
      "[",
      caller,
      "] some ranks' results require grad and others' do not: let the weight "
      "require grad on every rank or on none, and per_sample_weights on those "
      "ranks alone only if the weight does too");
  return result;
}

}  // namespace tessera::detail
