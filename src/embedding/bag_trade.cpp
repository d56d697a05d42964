#include "embedding/bag_trade.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding_renorm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <limits>

namespace tessera::detail {

namespace {

// sums[bags[i]] += rows[i], in the order of i. ATen's index_add_ takes a kernel
// call a row on the CPU.
void add_rows(
    const at::Tensor& sums, const at::Tensor& bags, const at::Tensor& rows) {
  if (!sums.is_cpu()) {
    sums.index_add_(0, bags, rows);
    return;
  }
  const int64_t width = sums.size(1);
  const auto* bag = bags.const_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(sums.scalar_type(), "add_rows", [&] {
    auto* to = sums.mutable_data_ptr<scalar_t>();
    const auto* from = rows.const_data_ptr<scalar_t>();
    for (int64_t i = 0; i < rows.size(0); ++i, from += width) {
      scalar_t* const sum = to + bag[i] * width;
      for (int64_t d = 0; d < width; ++d) {
        sum[d] += from[d];
      }
    }
  });
}

int64_t no_argmax(at::ScalarType argmax_dtype) {
  return argmax_dtype == at::kByte ? std::numeric_limits<uint8_t>::max()
                                   : std::numeric_limits<int32_t>::max();
}

// The places in the rank's own list of argmax that owners counted from its
// first entry; -1 for none.
at::Tensor own_places(const BagTrade& trade, const at::Tensor& argmax) {
  const auto none = argmax.eq(no_argmax(argmax.scalar_type()));
  if (trade.route.places.size(0) == 0) {
    return argmax.to(at::kInt);  // nothing was asked
  }
  const auto entries = argmax.to(at::kLong).masked_fill(none, 0).add_(
      trade.route.starts.to(argmax.device()).unsqueeze(1));
  return trade.route.places.to(argmax.device())
      .index_select(0, entries.flatten())
      .view_as(argmax)
      .to(at::kInt)
      .masked_fill(none, -1);
}

// A part's maxima put together with the rank's own, owner after owner. Leaves
// values without a argmax as they are.
void merge_owners(
    const BagTrade& trade, const BagMax& all, const PooledBags& theirs) {
  int64_t begin = 0;
  for (const int64_t bags : trade.route.bag_counts) {
    if (bags == 0) {
      continue;
    }
    const auto which = trade.listed.narrow(0, begin, bags);
    const BagMax mine{
        all.values.index_select(0, which), all.argmax.index_select(0, which)};
    const BagMax part{
        theirs.values.narrow(0, begin, bags),
        trade.their_argmax.narrow(0, begin, bags)};
    const auto merged = merge_bag_max({mine, part});
    all.values.index_copy_(0, which, merged.values);
    all.argmax.index_copy_(0, which, merged.argmax);
    begin += bags;
  }
}

// own_places and merge_owners in one pass, on the CPU: composed of ATen's ops
// they take longer than all the rest.
template <typename T, typename Argmax>
void merge_on_cpu(
    const BagTrade& trade, const BagMax& all, const PooledBags& theirs) {
  const int64_t width = all.values.size(1);
  const auto none =
      static_cast<Argmax>(no_argmax(c10::CppTypeToScalarType<Argmax>::value));
  const auto* bag = trade.listed.const_data_ptr<int64_t>();
  const auto* start = trade.route.starts.const_data_ptr<int64_t>();
  const auto* places = trade.route.places.const_data_ptr<int64_t>();
  const auto* value = theirs.values.const_data_ptr<T>();
  const auto* argmax = theirs.argmax.const_data_ptr<Argmax>();
  auto* their_place = trade.their_argmax.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < trade.listed.size(0); ++i) {
    auto* best = all.values.mutable_data_ptr<T>() + bag[i] * width;
    auto* place = all.argmax.mutable_data_ptr<int32_t>() + bag[i] * width;
    const int64_t* const entries = places + start[i];
    for (int64_t d = 0; d < width; ++d, ++value, ++argmax, ++their_place) {
      if (*argmax == none) {
        *their_place = -1;
        continue;
      }
      *their_place = static_cast<int32_t>(entries[*argmax]);
      const auto theirs_now = static_cast<at::opmath_type<T>>(*value);
      const auto best_now = static_cast<at::opmath_type<T>>(best[d]);
      // As merge_bag_max: a NaN is the bag's first entry, so nobody beats it.
      if (place[d] < 0 || theirs_now > best_now || theirs_now != theirs_now ||
          (theirs_now == best_now && *their_place < place[d])) {
        best[d] = *value;
        place[d] = *their_place;
      }
    }
  }
}

void merge_maxima(
    BagTrade& trade, const BagMax& all, const PooledBags& theirs) {
  if (!all.values.is_cpu()) {
    trade.their_argmax = own_places(trade, theirs.argmax);
    merge_owners(trade, all, theirs);
  } else {
    trade.their_argmax = at::empty(theirs.argmax.sizes(), all.argmax.options());
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf,
        at::kBFloat16,
        all.values.scalar_type(),
        "merge_maxima",
        [&] {
          if (theirs.argmax.scalar_type() == at::kByte) {
            merge_on_cpu<scalar_t, uint8_t>(trade, all, theirs);
          } else {
            merge_on_cpu<scalar_t, int32_t>(trade, all, theirs);
          }
        });
  }
  all.values.masked_fill_(all.argmax.lt(0), 0);
}

at::Tensor finish_sums(
    const BagTrade& trade, at::Tensor sums, at::ScalarType dtype) {
  if (trade.mode == BagMode::kMean) {
    sums.div_(trade.counts);
  }
  return sums.to(dtype);
}

}  // namespace

BagPart fetched_part(const BagTrade& trade) {
  return {0, trade.wanted.wanted.size(0) + 2};
}

PooledBags pool_asked(
    BagTrade& trade,
    const at::Tensor& shard,
    at::ScalarType sum_dtype,
    at::ScalarType argmax_dtype) {
  if (trade.mode != BagMode::kMax) {
    return {
        embedding_bag_part(
            shard, trade.part, trade.asked.input, BagMode::kSum, sum_dtype),
        at::Tensor()};
  }
  const auto maxima =
      embedding_bag_max_part(shard, trade.part, trade.asked.input);
  trade.asked_argmax = maxima.argmax;
  const auto counted =
      maxima.argmax.sub(trade.asked.firsts)
          .masked_fill_(maxima.argmax.lt(0), no_argmax(argmax_dtype));
  return {maxima.values, counted.to(argmax_dtype)};
}

at::Tensor pool_with_pooled(
    BagTrade& trade,
    const at::Tensor& shard,
    const PooledBags& theirs,
    at::ScalarType sum_dtype) {
  if (trade.mode == BagMode::kMax) {
    const auto all = embedding_bag_max_part(shard, trade.part, trade.own);
    merge_maxima(trade, all, theirs);
    trade.argmax = all.argmax;
    return all.values;
  }
  auto sums = embedding_bag_part(
      shard, trade.part, trade.own, BagMode::kSum, sum_dtype);
  add_rows(sums, trade.listed, theirs.values);
  return finish_sums(trade, std::move(sums), shard.scalar_type());
}

at::Tensor pool_with_fetched(
    BagTrade& trade, const at::Tensor& shard, at::ScalarType sum_dtype) {
  const auto part = fetched_part(trade);
  if (trade.mode == BagMode::kMax) {
    const auto all = merge_bag_max(
        {embedding_bag_max_part(shard, trade.part, trade.own),
         embedding_bag_max_part(trade.fetched, part, trade.by_fetched)});
    trade.argmax = all.argmax;
    return all.values;
  }
  auto sums = embedding_bag_part(
      shard, trade.part, trade.own, BagMode::kSum, sum_dtype);
  if (trade.fetched.size(0) > 0) {
    sums.add_(embedding_bag_part(
        trade.fetched, part, trade.by_fetched, BagMode::kSum, sum_dtype));
  }
  return finish_sums(trade, std::move(sums), shard.scalar_type());
}

void number_fetched(BagTrade& trade) {
  const int64_t count = trade.wanted.wanted.size(0);
  auto numbers = at::full({trade.own.indices.size(0)}, count, at::kLong);
  numbers.index_copy_(0, trade.route.places, trade.wanted.place);
  trade.by_fetched = trade.own;
  trade.by_fetched.padding_idx = -1;
  if (trade.own.padding_idx >= 0) {
    numbers.masked_fill_(
        trade.own.indices.cpu().eq(trade.own.padding_idx), count + 1);
    trade.by_fetched.padding_idx = count + 1;
  }
  trade.by_fetched.indices = numbers.to(trade.own.indices.device());
}

void renorm_part(
    const BagTrade& trade,
    at::Tensor shard,
    const BagQuery& query,
    bool padding) {
  std::vector<at::Tensor> entries{
      trade.own.indices.to(at::kLong), trade.asked.input.indices.to(at::kLong)};
  // Others keep their padding to themselves; one device would scale its row.
  if (padding) {
    entries.push_back(at::full({1}, query.left_out(), entries[0].options()));
  }
  const auto rows = at::cat(entries).sub_(trade.part.first);
  const auto here =
      rows.masked_select(rows.ge(0).logical_and_(rows.lt(trade.held)));
  if (here.size(0) > 0) {
    at::embedding_renorm_(shard, here, *query.max_norm, query.norm_type);
  }
}

BagTrade make_trade(
    const RankBags& bags,
    const BagQuery& query,
    c10::IntArrayRef bounds,
    int64_t self,
    at::ScalarType index_dtype,
    at::ScalarType sum_dtype) {
  BagTrade trade{};
  trade.mode = query.mode;
  trade.part = {bounds[self], bounds.back()};
  trade.held = bounds[self + 1] - bounds[self];
  trade.own.indices = bags.indices.to(index_dtype);
  trade.own.offsets = bags.bounds;
  trade.own.include_last_offset = true;
  trade.own.padding_idx = query.left_out();
  trade.route = route_bags(
      bags,
      bounds,
      self,
      query.left_out(),
      /*count_rows=*/query.strategy == BagStrategy::Cheapest,
      index_dtype);
  trade.listed = trade.route.bags.to(bags.indices.device());
  if (query.mode == BagMode::kMean) {
    trade.counts =
        bag_counts(trade.own).clamp_min_(1).to(sum_dtype).unsqueeze(1);
  }
  if (query.strategy == BagStrategy::Rows) {
    find_wanted(trade, bounds);
  }
  return trade;
}

void find_wanted(BagTrade& trade, c10::IntArrayRef bounds) {
  trade.wanted = route_rows(
      trade.own.indices.cpu().index_select(0, trade.route.places), bounds);
  trade.route.row_counts = trade.wanted.counts;
}

}  // namespace tessera::detail
