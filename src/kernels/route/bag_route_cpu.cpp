#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <vector>

#include "kernels/lookup/embedding_index.h"
#include "kernels/route/bag_route.h"

namespace tessera::detail {

namespace {

// Who owns a row: torch.chunk's parts are equal but for the last ones.
class RowOwner {
 public:
  explicit RowOwner(c10::IntArrayRef bounds)
      : part_(static_cast<uint64_t>(std::max<int64_t>(bounds[1], 1))) {}

  int32_t operator()(int64_t row) const {
    const auto r = static_cast<uint64_t>(row);
    // A division of 32 bits takes a third of the time.
    return (r | part_) >> 32 == 0
               ? static_cast<int32_t>(
                     static_cast<uint32_t>(r) / static_cast<uint32_t>(part_))
               : static_cast<int32_t>(r / part_);
  }

 private:
  uint64_t part_;
};

// A set of rows, to count the different ones: a fraction of the time of sorting
// them.
template <typename Row>
class RowSet {
 public:
  // Of at most `most` rows.
  explicit RowSet(int64_t most)
      : slots_(std::bit_ceil(static_cast<uint64_t>(2 * most + 1)), Row(-1)),
        shift_(64 - std::countr_zero(slots_.size())) {}

  // Whether it was not there yet.
  bool insert(Row row) {
    // Rows that are neighbours or equally far apart are spread by Fibonacci's
    // multiplier, 2^64 over the golden ratio.
    uint64_t slot =
        shift_ == 64
            ? 0
            : (static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15U) >> shift_;
    while (slots_[slot] != row) {
      if (slots_[slot] == Row(-1)) {
        slots_[slot] = row;
        return true;
      }
      slot = (slot + 1) & (slots_.size() - 1);
    }
    return false;
  }

 private:
  std::vector<Row> slots_;
  int shift_;
};

constexpr int32_t kLeftOut = -1;

// One rank's bags, and the owner of each entry.
template <typename Index>
struct OwnedEntries {
  const Index* index;
  const int64_t* offset;
  int64_t bags;
  std::vector<int32_t> owner = {};
};

// Finds each entry's owner, and how much goes to each.
template <typename Index>
void count_entries(
    OwnedEntries<Index>& entries,
    const RowOwner& owner_of,
    int64_t left_out,
    BagRoute& route) {
  std::vector<int64_t> last_bag(route.bag_counts.size(), -1);
  for (int64_t b = 0; b < entries.bags; ++b) {
    const int64_t end = entries.offset[b + 1];
    route.longest = std::max(route.longest, end - entries.offset[b]);
    for (int64_t e = entries.offset[b]; e < end; ++e) {
      const auto row = static_cast<int64_t>(entries.index[e]);
      if (row == left_out) {
        route.padding = true;
        entries.owner[e] = kLeftOut;
        continue;
      }
      const int32_t owner = owner_of(row);
      entries.owner[e] = owner;
      ++route.entry_counts[owner];
      route.bag_counts[owner] += static_cast<int64_t>(last_bag[owner] != b);
      last_bag[owner] = b;
    }
  }
}

// How many different rows of other ranks there are.
template <typename Sent, typename Index>
void count_rows(
    const OwnedEntries<Index>& entries, int64_t self, BagRoute& route) {
  RowSet<Sent> seen(c10::sum_integers(route.entry_counts));
  for (size_t e = 0; e < entries.owner.size(); ++e) {
    const int32_t owner = entries.owner[e];
    if (owner != kLeftOut && owner != self) {
      route.row_counts[owner] += static_cast<int64_t>(
          seen.insert(static_cast<Sent>(entries.index[e])));
    }
  }
}

// Where an owner's share goes on.
template <typename Sent>
struct Cursor {
  Sent* length;  // of the next bag
  Sent* row;     // of the next entry
  int64_t* bag;
  int64_t* start;
  int64_t entry;  // into `places`
  int64_t last_bag = -1;
};

// Room for all that goes to the owners, and where each one's begins.
template <typename Sent>
std::vector<Cursor<Sent>> make_room(BagRoute& route) {
  const int64_t bags = c10::sum_integers(route.bag_counts);
  const int64_t entries = c10::sum_integers(route.entry_counts);
  route.request =
      at::empty({bags + entries}, c10::CppTypeToScalarType<Sent>::value);
  route.bags = at::empty({bags}, at::kLong);
  route.starts = at::empty({bags}, at::kLong);
  route.places = at::empty({entries}, at::kLong);
  auto* request = route.request.template mutable_data_ptr<Sent>();
  auto* bag = route.bags.mutable_data_ptr<int64_t>();
  auto* start = route.starts.mutable_data_ptr<int64_t>();
  int64_t entry = 0;
  std::vector<Cursor<Sent>> cursors;
  for (size_t owner = 0; owner < route.bag_counts.size(); ++owner) {
    const int64_t its_bags = route.bag_counts[owner];
    cursors.push_back({request, request + its_bags, bag, start, entry});
    request += its_bags + route.entry_counts[owner];
    bag += its_bags;
    start += its_bags;
    entry += route.entry_counts[owner];
  }
  return cursors;
}

template <typename Sent, typename Index>
void fill_request(const OwnedEntries<Index>& entries, BagRoute& route) {
  auto cursors = make_room<Sent>(route);
  auto* places = route.places.mutable_data_ptr<int64_t>();
  for (int64_t b = 0; b < entries.bags; ++b) {
    bool first = true;
    for (int64_t e = entries.offset[b]; e < entries.offset[b + 1]; ++e) {
      if (entries.owner[e] == kLeftOut) {
        continue;
      }
      auto& to = cursors[entries.owner[e]];
      if (to.last_bag != b) {
        to.last_bag = b;
        *to.length++ = 0;
        *to.bag++ = b;
        *to.start++ = to.entry;
      }
      // Counts up from 0 where it holds the first entry, otherwise down.
      Sent& length = to.length[-1];
      length += length > 0 || (length == 0 && first) ? 1 : -1;
      *to.row++ = static_cast<Sent>(entries.index[e]);
      places[to.entry++] = e;
      first = false;
    }
  }
}

template <typename Sent>
BagRoute route_as(const BagIndices& bags, const BagOwners& owners) {
  const at::Tensor indices = bags.indices.contiguous();
  const at::Tensor offsets = bags.offsets.contiguous();
  const Sizes none(owners.bounds.size() - 1, 0);
  BagRoute route{none, none, none};
  with_index_data(indices, [&](const auto* index) {
    OwnedEntries entries{
        index, offsets.const_data_ptr<int64_t>(), offsets.numel() - 1};
    entries.owner.resize(indices.numel());
    count_entries(entries, RowOwner(owners.bounds), bags.padding_idx, route);
    if (owners.count_rows) {
      count_rows<Sent>(entries, owners.self, route);
    }
    fill_request<Sent>(entries, route);
  });
  return route;
}

BagRoute route_bags_cpu(const BagIndices& bags, const BagOwners& owners) {
  return index_dtype(owners.bounds.back()) == at::kInt
             ? route_as<int32_t>(bags, owners)
             : route_as<int64_t>(bags, owners);
}

// How many bags begin with an entry that another part holds.
template <typename Sent>
int64_t count_leaders(const Sent* lengths, const BagRequestParts& parts) {
  int64_t leaders = 0;
  for (size_t c = 0; c < parts.bag_counts.size(); ++c) {
    leaders += std::count_if(
        lengths, lengths + parts.bag_counts[c], [](Sent n) { return n < 0; });
    lengths += parts.bag_counts[c] + parts.entry_counts[c];
  }
  return leaders;
}

template <typename Sent>
AskedBags unpack_as(const BagRequestParts& parts, int64_t absent) {
  const auto& [requests, bag_counts, entry_counts] = parts;
  const Sent* from = requests.const_data_ptr<Sent>();
  const int64_t bags = c10::sum_integers(bag_counts);
  const int64_t rows = c10::sum_integers(entry_counts) +
                       (absent < 0 ? 0 : count_leaders(from, parts));
  AskedBags asked;
  asked.input.include_last_offset = true;
  asked.input.indices = at::empty({rows}, requests.options());
  asked.input.offsets = at::empty({bags + 1}, at::kLong);
  asked.firsts = at::empty({bags, 1}, at::kInt);
  Sent* row = asked.input.indices.template mutable_data_ptr<Sent>();
  Sent* const begin = row;
  auto* offset = asked.input.offsets.mutable_data_ptr<int64_t>();
  auto* first = asked.firsts.mutable_data_ptr<int32_t>();
  for (const int64_t count : bag_counts) {
    const Sent* entries = from + count;
    for (int64_t b = 0; b < count; ++b) {
      *offset++ = row - begin;
      if (from[b] < 0 && absent >= 0) {
        *row++ = static_cast<Sent>(absent);
      }
      *first++ = static_cast<int32_t>(row - begin);
      const auto length = std::abs(static_cast<int64_t>(from[b]));
      row = std::copy_n(entries, length, row);
      entries += length;
    }
    from = entries;
  }
  *offset = row - begin;
  return asked;
}

AskedBags unpack_requests_cpu(const BagRequestParts& parts, int64_t absent) {
  return parts.requests.scalar_type() == at::kInt
             ? unpack_as<int32_t>(parts, absent)
             : unpack_as<int64_t>(parts, absent);
}

// ATen's index_add_ takes a kernel call a row.
void add_replies_cpu(
    const at::Tensor& sums, const BagRoute& route, const at::Tensor& replies) {
  const int64_t width = sums.size(1);
  const auto* bag = route.bags.const_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(sums.scalar_type(), "add_replies", [&] {
    auto* to = sums.mutable_data_ptr<scalar_t>();
    const auto* from = replies.const_data_ptr<scalar_t>();
    for (int64_t i = 0; i < replies.size(0); ++i, from += width) {
      scalar_t* const sum = to + bag[i] * width;
      for (int64_t d = 0; d < width; ++d) {
        sum[d] += from[d];
      }
    }
  });
}

template <typename Sent>
void find_places(
    const BagRoute& route, const at::Tensor& argmax, int32_t* place) {
  const auto none = static_cast<Sent>(no_argmax(argmax.scalar_type()));
  const int64_t width = argmax.size(1);
  const auto* start = route.starts.const_data_ptr<int64_t>();
  const auto* places = route.places.const_data_ptr<int64_t>();
  const auto* from = argmax.const_data_ptr<Sent>();
  for (int64_t i = 0; i < argmax.size(0); ++i) {
    const int64_t* const entries = places + start[i];
    for (int64_t d = 0; d < width; ++d, ++from, ++place) {
      *place = *from == none ? -1 : static_cast<int32_t>(entries[*from]);
    }
  }
}

at::Tensor argmax_places_cpu(const BagRoute& route, const at::Tensor& argmax) {
  auto result = at::empty(argmax.sizes(), argmax.options().dtype(at::kInt));
  const auto find = argmax.scalar_type() == at::kByte ? find_places<uint8_t>
                                                      : find_places<int32_t>;
  find(route, argmax, result.mutable_data_ptr<int32_t>());
  return result;
}

}  // namespace

const BagRouteKernels& BagRouteKernels::cpu() {
  static constexpr BagRouteKernels kernels{
      route_bags_cpu, unpack_requests_cpu, add_replies_cpu, argmax_places_cpu};
  return kernels;
}

}  // namespace tessera::detail
