#include "embedding/bag_census.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace tessera::detail {

namespace {

constexpr int64_t kWords = sizeof(BagNotice) / sizeof(int64_t);

at::Tensor packed(const BagNotices& notices) {
  const auto count = static_cast<int64_t>(notices.size());
  auto words = at::empty({count, kWords}, at::kLong);
  std::memcpy(
      words.mutable_data_ptr<int64_t>(),
      notices.data(),
      notices.size() * sizeof(BagNotice));
  return words;
}

BagNotices unpacked(const at::Tensor& words) {
  BagNotices notices(words.size(0));
  std::memcpy(
      static_cast<void*>(notices.data()),
      words.const_data_ptr<int64_t>(),
      notices.size() * sizeof(BagNotice));
  return notices;
}

}  // namespace

int64_t bag_flags(
    const RankBags& bags, const LocalError& error, const BagWants& wants) {
  return (error.text.empty() ? 0 : BagNotice::kLocalError) |
         (bags.weights.defined() ? BagNotice::kPerSampleWeights : 0) |
         (wants.per_sample_weight_gradients ? BagNotice::kGradient : 0) |
         (wants.gradients ? BagNotice::kRecorded : 0);
}

bool any_flag(const BagNotices& told, int64_t flag) {
  return std::any_of(told.begin(), told.end(), [&](const BagNotice& notice) {
    return (notice.flags & flag) != 0;
  });
}

std::vector<BagNotices> swap_notices(
    MeshDim at,
    c10::ArrayRef<BagNotices> notices,
    const LocalError& error,
    const char* caller) {
  auto& comm = collectives(at.mesh);
  Shards words;
  for (const auto& mine : notices) {
    words.push_back(packed(mine));
  }
  const std::vector<Parts> one_each(
      notices.size(), Parts(at.mesh.size(at.dim), 1));
  std::vector<BagNotices> told;
  bool bad = false;
  bool alike = true;
  bool recorded_alike = true;
  for (const auto& theirs :
       comm.all_to_all_rows(at, words, one_each, one_each)) {
    told.push_back(unpacked(theirs));
    bad |= any_flag(told.back(), BagNotice::kLocalError);
    for (const auto& notice : told.back()) {
      alike &= notice.fingerprint == told.back()[0].fingerprint;
      recorded_alike &=
          ((notice.flags ^ told.back()[0].flags) & BagNotice::kRecorded) == 0;
    }
  }
  if (bad) {
    comm.agree(at.mesh, error.text, error.kind);
  }
  // Everyone sees all fingerprints: nobody goes on alone.
  TORCH_CHECK_VALUE(
      alike,
      "[",
      caller,
      "] the ranks were given different options (mode, padding_idx, max_norm, "
      "norm_type, strategy or update) or different offsets: give every rank "
      "the "
      "same");
  // A rank without a backward pass would keep the others waiting in theirs.
  TORCH_CHECK_VALUE(
      recorded_alike,
      "[",
      caller,
      "] some ranks' results require grad and others' do not: let the weight "
      "require grad on every rank or on none, and per_sample_weights on those "
      "ranks alone only if the weight does too");
  return told;
}

}  // namespace tessera::detail
