// Routes of bags composed of ATen's ops, for GPUs and other devices: the host
// waits once, for the counts. Memory: some ten int64s for each entry.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <optional>

#include "kernels/device_errors.h"
#include "kernels/route/bag_route.h"

namespace tessera::detail {

namespace {

// 0, then the sums of the first 1, 2, ... of `list`.
at::Tensor running_sums(const at::Tensor& list) {
  return at::cat(
      {at::zeros({1}, list.options().dtype(at::kLong)),
       list.cumsum(0, at::kLong)});
}

// counts[c], of their running sums on the host.
Sizes parts_of(const int64_t* ends, int64_t count) {
  Sizes parts;
  for (int64_t c = 0; c < count; ++c) {
    parts.push_back(ends[c] - (c == 0 ? 0 : ends[c - 1]));
  }
  return parts;
}

// Entries by owner. A segment is what an owner gets of one bag.
class DeviceRouter {
 public:
  DeviceRouter(const BagIndices& input, c10::IntArrayRef bounds)
      : input_(input),
        longs_(input.indices.options().dtype(at::kLong)),
        ranks_(static_cast<int64_t>(bounds.size()) - 1),
        bags_(input.offsets.size(0) - 1),
        entries_(input.indices.numel()),
        sent_(index_dtype(bounds.back())) {
    sort(std::max<int64_t>(bounds[1], 1));
    number_segments();
  }

  // What the host must learn: how many entries and segments there are up to
  // each owner, the longest bag, and where the last one ends.
  at::Tensor counts() const {
    const at::Tensor entry_ends = at::searchsorted(
        owner_, at::arange(ranks_, owner_.options()), false, true);
    const at::Tensor longest = bags_ == 0 ? at::zeros({1}, longs_)
                                          : input_.offsets.diff().max().view(1);
    return at::cat(
        {entry_ends,
         numbers_.index_select(0, entry_ends),
         longest,
         input_.offsets.slice(0, bags_)});
  }
  int64_t count_size() const { return 2 * ranks_ + 2; }

  // `counts` is counts(), on the host.
  BagRoute route(const int64_t* counts) const {
    TORCH_CHECK_VALUE(
        counts[2 * ranks_ + 1] == entries_,
        "[embedding_bag] offsets need to have the input size in the end when "
        "the flag \"include_last_offset\" is on! The input has ",
        entries_,
        " entries");
    BagRoute route;
    route.entry_counts = parts_of(counts, ranks_);
    route.bag_counts = parts_of(counts + ranks_, ranks_);
    route.row_counts.assign(ranks_, 0);
    route.longest = counts[2 * ranks_];
    const int64_t held = counts[ranks_ - 1];
    const int64_t segments = counts[2 * ranks_ - 1];
    route.padding = held < entries_;
    route.places = places_.slice(0, 0, held);

    // Where segments begin. Entries that begin none write to the last place,
    // which then says where all end.
    const at::Tensor starts = at::empty({segments + 1}, longs_);
    starts.scatter_(
        0,
        at::where(begins_, numbers_.slice(0, 1).sub(1), segments)
            .slice(0, 0, held),
        at::arange(held, longs_));
    starts.slice(0, segments).fill_(held);
    route.starts = starts.slice(0, 0, segments);
    route.bags = bag_of_.index_select(0, route.starts);
    route.request = request(route, starts.diff());
    return route;
  }

 private:
  void sort(int64_t part) {
    const at::Tensor& indices = input_.indices;
    const at::Tensor every = at::arange(entries_, longs_);
    const at::Tensor bag =
        at::searchsorted(input_.offsets.slice(0, 1), every, false, true);
    // Behind the last bag, or padding.
    at::Tensor absent = bag.ge(bags_);
    if (input_.padding_idx >= 0) {
      absent.logical_or_(indices.eq(input_.padding_idx));
    }
    // Few owners are sorted in one pass. Bad indices, which are raised before
    // the route is used, have any of them.
    const auto dtype = ranks_ < 255 ? at::kByte : at::kInt;
    const at::Tensor owner = indices.floor_divide(part)
                                 .clamp_(0, ranks_ - 1)
                                 .masked_fill_(absent, ranks_)
                                 .to(dtype);
    std::tie(owner_, places_) = stable_sort(owner);
    bag_of_ = bag.index_select(0, places_);
  }

  void number_segments() {
    begins_ = owner_.lt(ranks_);
    if (entries_ > 1) {
      const auto changes = [](const at::Tensor& list) {
        return list.slice(0, 1).ne(list.slice(0, 0, -1));
      };
      begins_.slice(0, 1).logical_and_(
          changes(owner_).logical_or_(changes(bag_of_)));
    }
    numbers_ = running_sums(begins_);
  }

  // For each owner the lengths of its segments, then their rows.
  at::Tensor request(const BagRoute& route, const at::Tensor& lengths) const {
    const at::Tensor place = route.places.index_select(0, route.starts);
    const at::Tensor first = at::full({bags_}, entries_, longs_)
                                 .scatter_reduce_(0, route.bags, place, "amin")
                                 .index_select(0, route.bags);
    const at::Tensor owner = owner_.slice(0, 0, route.places.size(0));
    const auto [owners, order] =
        stable_sort(at::cat({owner.index_select(0, route.starts), owner}));
    return at::cat(
               {at::where(place.eq(first), lengths, lengths.neg()).to(sent_),
                input_.indices.index_select(0, route.places).to(sent_)})
        .index_select(0, order);
  }

  static std::tuple<at::Tensor, at::Tensor> stable_sort(
      const at::Tensor& list) {
    return list.sort(/*stable=*/std::optional<bool>(true));
  }

  const BagIndices& input_;
  const at::TensorOptions longs_;
  const int64_t ranks_;
  const int64_t bags_;
  const int64_t entries_;
  const at::ScalarType sent_;
  at::Tensor owner_;    // of each entry, ascending; `ranks_`: absent
  at::Tensor places_;   // where it stands among the indices
  at::Tensor bag_of_;   // and in which bag
  at::Tensor begins_;   // whether it begins a segment
  at::Tensor numbers_;  // [entries + 1]: how many segments begin before
};

BagRoute route_bags_composed(const BagIndices& bags, const BagOwners& owners) {
  const DeviceRouter router(bags, owners.bounds);
  at::Tensor counts = router.counts();
  std::optional<StartedRoute> rows;
  if (owners.count_rows) {
    rows = start_route(bags.indices, owners.bounds, bags.padding_idx);
    counts = at::cat({counts, rows->counts.to(counts.device())});
  }
  const at::Tensor on_host = counts.cpu();  // waits
  raise_device_errors();
  const auto* const count = on_host.const_data_ptr<int64_t>();
  BagRoute route = router.route(count);
  if (rows.has_value()) {
    route.rows = rows->finish(count + router.count_size());
    route.row_counts = route.rows->counts;
    route.row_counts[owners.self] = 0;
  }
  return route;
}

AskedBags unpack_requests_composed(
    const BagRequestParts& parts, int64_t absent) {
  const auto& [requests, bag_counts, entry_counts] = parts;
  std::vector<at::Tensor> lengths;
  std::vector<at::Tensor> rows;
  int64_t begin = 0;
  for (size_t c = 0; c < bag_counts.size(); ++c) {
    lengths.push_back(requests.narrow(0, begin, bag_counts[c]));
    begin += bag_counts[c];
    rows.push_back(requests.narrow(0, begin, entry_counts[c]));
    begin += entry_counts[c];
  }
  const at::Tensor signed_lengths = at::cat(lengths);
  const at::Tensor entries = at::cat(rows);
  const at::Tensor length = signed_lengths.abs().to(at::kLong);
  AskedBags asked;
  asked.input.include_last_offset = true;
  asked.input.indices = entries;
  asked.input.offsets = running_sums(length);
  at::Tensor firsts = asked.input.offsets.slice(0, 0, -1);
  if (absent >= 0) {
    // How many bags have a leader is known only on the device: there is room
    // for one each, and what is left behind the last bag belongs to none.
    const int64_t bags = c10::sum_integers(bag_counts);
    const at::Tensor leads = signed_lengths.lt(0).to(at::kLong);
    const at::Tensor every =
        at::arange(entries.size(0), length.options().dtype(at::kLong));
    const at::Tensor bag =
        at::searchsorted(asked.input.offsets.slice(0, 1), every, false, true);
    asked.input.indices =
        at::full({entries.size(0) + bags}, absent, entries.options());
    asked.input.indices.index_copy_(
        0, leads.cumsum(0).index_select(0, bag).add_(every), entries);
    asked.input.offsets = running_sums(length.add(leads));
    firsts = asked.input.offsets.slice(0, 0, -1).add(leads);
  }
  asked.firsts = firsts.to(at::kInt).unsqueeze(1);
  return asked;
}

// A GPU's index_add_ adds in any order, so that each owner's rows have a call
// of their own.
void add_replies_composed(
    const at::Tensor& sums, const BagRoute& route, const at::Tensor& replies) {
  int64_t begin = 0;
  for (const int64_t count : route.bag_counts) {
    sums.index_add_(
        0, route.bags.narrow(0, begin, count), replies.narrow(0, begin, count));
    begin += count;
  }
}

at::Tensor argmax_places_composed(
    const BagRoute& route, const at::Tensor& argmax) {
  if (argmax.size(0) == 0) {
    return argmax.to(at::kInt);  // nothing was asked
  }
  const auto none = argmax.eq(no_argmax(argmax.scalar_type()));
  const auto entries =
      argmax.to(at::kLong).masked_fill(none, 0).add_(route.starts.unsqueeze(1));
  return route.places.index_select(0, entries.flatten())
      .view_as(argmax)
      .to(at::kInt)
      .masked_fill(none, -1);
}

}  // namespace

const BagRouteKernels& BagRouteKernels::composed() {
  static constexpr BagRouteKernels kernels{
      route_bags_composed,
      unpack_requests_composed,
      add_replies_composed,
      argmax_places_composed};
  return kernels;
}

}  // namespace tessera::detail
