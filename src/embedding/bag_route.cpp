#include "embedding/bag_route.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <vector>

#include "comm/result.h"
#include "embedding/row_exchange.h"

namespace tessera::detail {

namespace {

// Who owns a row: torch.chunk's parts are equal but for the last ones.
class Owners {
 public:
  explicit Owners(c10::IntArrayRef bounds)
      : part_(static_cast<uint64_t>(std::max<int64_t>(bounds[1], 1))) {}

  int32_t of(int64_t row) const {
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

constexpr int32_t kLeftOut = -1;

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

template <typename Index, typename Sent>
class Router {
 public:
  Router(
      const LookupInput& input,
      const LookupQuery& query,
      c10::IntArrayRef bounds,
      int64_t self)
      : indices_(input.indices.contiguous()),
        bounds_(input.bounds.contiguous()),
        index_(indices_.const_data_ptr<Index>()),
        bound_(bounds_.const_data_ptr<int64_t>()),
        bag_count_(input.bags()),
        owners_(bounds),
        ranks_(static_cast<int64_t>(bounds.size()) - 1),
        self_(static_cast<int32_t>(self)),
        left_out_(query.left_out()),
        count_rows_(query.strategy == BagStrategy::Cheapest) {}

  BagRoute route() {
    count();
    if (count_rows_) {
      count_rows();
    }
    fill();
    return std::move(route_);
  }

 private:
  // Finds each entry's owner, and how much goes to each.
  void count() {
    owner_.resize(indices_.numel());
    route_.bag_counts.assign(ranks_, 0);
    route_.entry_counts.assign(ranks_, 0);
    route_.row_counts.assign(ranks_, 0);
    std::vector<int64_t> last_bag(ranks_, -1);
    for (int64_t b = 0; b < bag_count_; ++b) {
      route_.longest = std::max(route_.longest, bound_[b + 1] - bound_[b]);
      for (int64_t e = bound_[b]; e < bound_[b + 1]; ++e) {
        const auto row = static_cast<int64_t>(index_[e]);
        if (row == left_out_) {
          route_.padding = true;
          owner_[e] = kLeftOut;
          continue;
        }
        const int32_t owner = owners_.of(row);
        owner_[e] = owner;
        ++route_.entry_counts[owner];
        route_.bag_counts[owner] += static_cast<int64_t>(last_bag[owner] != b);
        last_bag[owner] = b;
      }
    }
  }

  void count_rows() {
    RowSet<Sent> seen(total(route_.entry_counts));
    for (size_t e = 0; e < owner_.size(); ++e) {
      if (owner_[e] != kLeftOut && owner_[e] != self_) {
        route_.row_counts[owner_[e]] +=
            static_cast<int64_t>(seen.insert(static_cast<Sent>(index_[e])));
      }
    }
  }

  // Where an owner's share goes on.
  struct Cursor {
    Sent* length;  // of the next bag
    Sent* row;     // of the next entry
    int64_t* bag;
    int64_t* start;
    int64_t entry;  // into `places`
    int64_t last_bag = -1;
  };

  std::vector<Cursor> make_room() {
    const int64_t bags = total(route_.bag_counts);
    const int64_t entries = total(route_.entry_counts);
    route_.request =
        at::empty({bags + entries}, c10::CppTypeToScalarType<Sent>::value);
    route_.bags = at::empty({bags}, at::kLong);
    route_.starts = at::empty({bags}, at::kLong);
    route_.places = at::empty({entries}, at::kLong);
    auto* request = route_.request.template mutable_data_ptr<Sent>();
    auto* bag = route_.bags.mutable_data_ptr<int64_t>();
    auto* start = route_.starts.mutable_data_ptr<int64_t>();
    int64_t entry = 0;
    std::vector<Cursor> cursors;
    for (int64_t owner = 0; owner < ranks_; ++owner) {
      const int64_t its_bags = route_.bag_counts[owner];
      cursors.push_back({request, request + its_bags, bag, start, entry});
      request += its_bags + route_.entry_counts[owner];
      bag += its_bags;
      start += its_bags;
      entry += route_.entry_counts[owner];
    }
    return cursors;
  }

  void fill() {
    auto cursors = make_room();
    auto* places = route_.places.mutable_data_ptr<int64_t>();
    for (int64_t b = 0; b < bag_count_; ++b) {
      bool first = true;
      for (int64_t e = bound_[b]; e < bound_[b + 1]; ++e) {
        if (owner_[e] == kLeftOut) {
          continue;
        }
        auto& to = cursors[owner_[e]];
        if (to.last_bag != b) {
          to.last_bag = b;
          *to.length++ = 0;
          *to.bag++ = b;
          *to.start++ = to.entry;
        }
        // Counts up from 0 where it holds the first entry, otherwise down.
        Sent& length = to.length[-1];
        length += length > 0 || (length == 0 && first) ? 1 : -1;
        *to.row++ = static_cast<Sent>(index_[e]);
        places[to.entry++] = e;
        first = false;
      }
    }
  }

  const at::Tensor indices_;
  const at::Tensor bounds_;
  const Index* index_;
  const int64_t* bound_;
  int64_t bag_count_;
  Owners owners_;
  int64_t ranks_;
  int32_t self_;
  int64_t left_out_;
  bool count_rows_;
  std::vector<int32_t> owner_;
  BagRoute route_;
};

template <typename Sent>
AskedBags unpack(
    const at::Tensor& request,
    const Parts& bag_counts,
    const Parts& entry_counts,
    int64_t absent) {
  const Sent* from = request.const_data_ptr<Sent>();
  const int64_t bags = total(bag_counts);
  const int64_t entries = total(entry_counts);
  int64_t leaders = 0;
  if (absent >= 0) {
    const Sent* lengths = from;
    for (size_t c = 0; c < bag_counts.size(); ++c) {
      leaders += std::count_if(
          lengths, lengths + bag_counts[c], [](Sent n) { return n < 0; });
      lengths += bag_counts[c] + entry_counts[c];
    }
  }
  AskedBags asked;
  asked.input.include_last_offset = true;
  asked.input.indices = at::empty({entries + leaders}, request.options());
  asked.input.offsets = at::empty({bags + 1}, at::kLong);
  asked.firsts = at::empty({bags, 1}, at::kInt);
  Sent* row = asked.input.indices.template mutable_data_ptr<Sent>();
  Sent* const begin = row;
  auto* offset = asked.input.offsets.mutable_data_ptr<int64_t>();
  auto* first = asked.firsts.mutable_data_ptr<int32_t>();
  for (size_t c = 0; c < bag_counts.size(); ++c) {
    const Sent* rows = from + bag_counts[c];
    for (int64_t b = 0; b < bag_counts[c]; ++b) {
      *offset++ = row - begin;
      if (from[b] < 0 && absent >= 0) {
        *row++ = static_cast<Sent>(absent);
      }
      *first++ = static_cast<int32_t>(row - begin);
      const auto length = std::abs(static_cast<int64_t>(from[b]));
      row = std::copy_n(rows, length, row);
      rows += length;
    }
    from = rows;
  }
  *offset = row - begin;
  return asked;
}

}  // namespace

BagRoute route_bags(
    const LookupInput& input,
    const LookupQuery& query,
    c10::IntArrayRef bounds,
    int64_t self) {
  if (!input.indices.is_cpu()) {
    return route_bags_on_device(input, query, bounds, self);
  }
  const auto with = [&](auto index, auto sent) {
    return Router<decltype(index), decltype(sent)>(input, query, bounds, self)
        .route();
  };
  const bool narrow = input.indices.scalar_type() == at::kInt;
  if (index_dtype(bounds.back()) == at::kInt) {
    return narrow ? with(int32_t{}, int32_t{}) : with(int64_t{}, int32_t{});
  }
  return narrow ? with(int32_t{}, int64_t{}) : with(int64_t{}, int64_t{});
}

AskedBags unpack_requests(
    const at::Tensor& request,
    const Parts& bag_counts,
    const Parts& entry_counts,
    int64_t absent) {
  const auto f = !request.is_cpu()                   ? unpack_requests_on_device
                 : request.scalar_type() == at::kInt ? unpack<int32_t>
                                                     : unpack<int64_t>;
  return f(request, bag_counts, entry_counts, absent);
}

}  // namespace tessera::detail
