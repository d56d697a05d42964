// Bags of a row-wise sharded table that the owners of rows pool.
#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "embedding/make_lookup.h"

namespace tessera::detail {

namespace {

// sums[bags[i]] += rows[i], in the order of i. `counts` are the bags of each
// owner, which differ. ATen's index_add_ takes a kernel call a row on the CPU;
// on a GPU it adds in any order, so that each owner's rows have a call of their
// own.
void add_rows(
    const at::Tensor& sums,
    const at::Tensor& bags,
    const at::Tensor& rows,
    const Parts& counts) {
  if (!sums.is_cpu()) {
    int64_t begin = 0;
    for (const int64_t count : counts) {
      sums.index_add_(
          0, bags.narrow(0, begin, count), rows.narrow(0, begin, count));
      begin += count;
    }
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

int64_t no_argmax(at::ScalarType dtype) {
  return dtype == at::kByte ? std::numeric_limits<uint8_t>::max()
                            : std::numeric_limits<int32_t>::max();
}

// The places among the rank's own indices, int32, of what owners counted from
// its first entry; -1 for none. On the CPU in one pass: composed of ATen's ops
// it takes longer than all the rest.
template <typename Sent>
at::Tensor own_places_cpu(const BagRoute& route, const at::Tensor& argmax) {
  auto result = at::empty(argmax.sizes(), argmax.options().dtype(at::kInt));
  const auto none = static_cast<Sent>(no_argmax(argmax.scalar_type()));
  const int64_t width = argmax.size(1);
  const auto* start = route.starts.const_data_ptr<int64_t>();
  const auto* places = route.places.const_data_ptr<int64_t>();
  const auto* from = argmax.const_data_ptr<Sent>();
  auto* to = result.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < argmax.size(0); ++i) {
    const int64_t* const entries = places + start[i];
    for (int64_t d = 0; d < width; ++d, ++from, ++to) {
      *to = *from == none ? -1 : static_cast<int32_t>(entries[*from]);
    }
  }
  return result;
}

at::Tensor own_places(const BagRoute& route, const at::Tensor& argmax) {
  if (argmax.is_cpu()) {
    return argmax.scalar_type() == at::kByte
               ? own_places_cpu<uint8_t>(route, argmax)
               : own_places_cpu<int32_t>(route, argmax);
  }
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

// One rank's side, as the one who asks and as an owner of rows.
struct Side {
  BagRoute route;
  at::Tensor counts;  // mean: [bags, 1] of the sum dtype, 1 for empty bags
  // By who asks: how many bags with how many entries.
  Parts asked_bags;
  Parts asked_entries;
  AskedBags asked;
};

// Of maxima, what the forward pass leaves to the backward pass.
struct Argmax {
  at::Tensor whole;   // [bags, d], int32: places among the indices; -1: none
  at::Tensor owners;  // [route.bags, d]: the same, of each owner
  at::Tensor asked;   // [asked bags, d]: places in asked.input
};

class PooledLookup final : public TableLookup {
 public:
  PooledLookup(
      LookupRequest request,
      const Handshake& handshake,
      std::vector<BagRoute> routes,
      at::ScalarType argmax_dtype)
      : TableLookup(std::move(request), handshake.settled),
        argmax_dtype_(argmax_dtype),
        move_{request_.table, request_.mesh_dim, settled_.silent},
        sides_(ask_owners(std::move(routes), handshake.told)) {}

  Gradients backward(const BackwardPass& pass) override {
    const auto& [grads, weight, table_needs_grad] = pass;
    Shards sent;
    for (size_t i = 0; i < sides_.size(); ++i) {
      sent.push_back(grad_of_asked(i, grads[i]));
    }
    const auto given =
        move_(sent, each(sides_, sent_bags), each(sides_, asked_bags));
    Gradients result;
    result.per_sample_weights.resize(sides_.size());
    if (settled_.weights_need_grad) {
      weight_gradients(given, current_shards(weight), result);
    }
    for (size_t i = 0; table_needs_grad && i < sides_.size(); ++i) {
      take_gradient(i, grad_of_held(i, given[i]), weight, result);
    }
    return result;
  }

 private:
  at::Tensor looked_up(size_t i) const override {
    return sides_[i].asked.input.indices;
  }

  std::vector<at::Tensor> look_up(ShardsRef shards) override {
    const bool max = query().mode == BagMode::kMax;
    argmax_.resize(sides_.size());
    Shards values;
    Shards argmax;
    for (size_t i = 0; i < sides_.size(); ++i) {
      if (max) {
        auto maxima = max_of_asked(i, shards[i]);
        values.push_back(std::move(maxima.values));
        argmax.push_back(std::move(maxima.argmax));
      } else {
        values.push_back(embedding_bag_part(
            shards[i],
            part(i),
            sides_[i].asked.input,
            BagMode::kSum,
            sum_dtype()));
      }
    }
    const auto from = each(sides_, asked_bags);
    const auto to = each(sides_, sent_bags);
    values = move_(values, from, to);
    if (max) {
      argmax = move_(argmax, from, to);
    }
    std::vector<at::Tensor> results;
    for (size_t i = 0; i < sides_.size(); ++i) {
      results.push_back(
          max ? merge(i, values[i], argmax[i]) : add(i, values[i]));
    }
    return results;
  }

  BagPart part(size_t i) const { return {held_rows(i).begin, rows()}; }

  // One list of counts a local position.
  template <class F>
  static std::vector<Parts> each(const std::vector<Side>& sides, F counts) {
    std::vector<Parts> all;
    for (const auto& side : sides) {
      all.push_back(counts(side));
    }
    return all;
  }
  static const Parts& sent_bags(const Side& s) { return s.route.bag_counts; }
  static const Parts& sent_entries(const Side& s) {
    return s.route.entry_counts;
  }
  static const Parts& asked_bags(const Side& s) { return s.asked_bags; }
  static const Parts& asked_entries(const Side& s) { return s.asked_entries; }

  Side make_side(size_t i, BagRoute route, const BagRequests& told) const {
    Side side;
    side.route = std::move(route);
    side.asked_bags = each_of(told, &BagRequest::bags);
    side.asked_entries = each_of(told, &BagRequest::indices);
    if (query().mode == BagMode::kMean) {
      const BagIndices own{
          .indices = input(i).indices,
          .offsets = input(i).bounds,
          .include_last_offset = true,
          .padding_idx = query().left_out()};
      side.counts = bag_counts(own).clamp_min_(1).to(sum_dtype()).unsqueeze(1);
    }
    return side;
  }

  // Sends each owner the entries of its bags, and their weights.
  std::vector<Side> ask_owners(
      std::vector<BagRoute> routes, c10::ArrayRef<BagRequests> told) const {
    std::vector<Side> sides;
    Shards requests;
    Shards weights;
    for (size_t i = 0; i < routes.size(); ++i) {
      sides.push_back(make_side(i, std::move(routes[i]), told[i]));
      requests.push_back(sides[i].route.request);
      if (settled_.per_sample_weights) {
        weights.push_back(
            weights_of(i)->index_select(0, sides[i].route.places));
      }
    }
    const auto sent = each(sides, sent_entries);
    const auto asked = each(sides, asked_entries);
    auto sent_sizes = sent;
    auto asked_sizes = asked;
    for (size_t i = 0; i < sides.size(); ++i) {
      for (size_t c = 0; c < sent[i].size(); ++c) {
        sent_sizes[i][c] += sides[i].route.bag_counts[c];
        asked_sizes[i][c] += sides[i].asked_bags[c];
      }
    }
    requests = move_(requests, sent_sizes, asked_sizes);
    if (settled_.per_sample_weights) {
      weights = move_(weights, sent, asked);
    }
    for (size_t i = 0; i < sides.size(); ++i) {
      auto& side = sides[i];
      side.asked = unpack_requests(
          requests[i], side.asked_bags, side.asked_entries, absent_row(i));
      if (settled_.per_sample_weights) {
        side.asked.input.per_sample_weights = weights[i];
      }
    }
    return sides;
  }

  // A row that the part does not hold, where the kernels must know whether a
  // bag's first entry is elsewhere. (Only then there is such a row.)
  int64_t absent_row(size_t i) const {
    const auto held = held_rows(i);
    if (query().mode != BagMode::kMax) {
      return -1;
    }
    return held.begin > 0 ? 0 : held.size;
  }

  // What an owner sends back: maxima with the argmax counted from the asker's
  // first entry.
  BagMax max_of_asked(size_t i, const at::Tensor& shard) {
    const auto& asked = sides_[i].asked;
    auto maxima = embedding_bag_max_part(shard, part(i), asked.input);
    argmax_[i].asked = maxima.argmax;
    maxima.argmax =
        maxima.argmax.sub(asked.firsts)
            .masked_fill_(maxima.argmax.lt(0), no_argmax(argmax_dtype_))
            .to(argmax_dtype_);
    return maxima;
  }

  // The rank's bags, from what the owners of their rows sent.
  at::Tensor add(size_t i, const at::Tensor& values) const {
    auto sums = at::zeros({input(i).bags(), values.size(1)}, values.options());
    add_rows(sums, sides_[i].route.bags, values, sides_[i].route.bag_counts);
    if (query().mode == BagMode::kMean) {
      sums.div_(sides_[i].counts);
    }
    return sums.to(table().dtype);
  }

  at::Tensor merge(
      size_t i, const at::Tensor& values, const at::Tensor& argmax) {
    const auto& side = sides_[i];
    const Sizes sizes{input(i).bags(), values.size(1)};
    argmax_[i].owners = own_places(side.route, argmax);
    argmax_[i].whole = at::full(sizes, -1, argmax.options().dtype(at::kInt));
    const BagMax all{at::zeros(sizes, values.options()), argmax_[i].whole};
    int64_t begin = 0;
    for (const int64_t bags : side.route.bag_counts) {
      merge_bag_max_(
          all,
          side.route.bags.narrow(0, begin, bags),
          {values.narrow(0, begin, bags),
           argmax_[i].owners.narrow(0, begin, bags)});
      begin += bags;
    }
    return all.values;
  }

  // What owners need to know of the gradient of the bags asked of them: a row
  // for each, 0 where another's entry is the argmax.
  at::Tensor grad_of_asked(size_t i, const at::Tensor& given) const {
    const auto& side = sides_[i];
    const auto grad = query().mode == BagMode::kMean
                          ? given.to(sum_dtype()).div(side.counts)
                          : given;
    auto sent = grad.index_select(0, side.route.bags);
    if (query().mode == BagMode::kMax) {
      sent.masked_fill_(
          argmax_[i]
              .whole.index_select(0, side.route.bags)
              .ne(argmax_[i].owners),
          0);
    }
    return sent;
  }

  // The bags asked of a rank, whose sums or maxima have the gradient `given`.
  BagGradient grad_of_held(size_t i, const at::Tensor& given) const {
    const bool max = query().mode == BagMode::kMax;
    BagGradient gradient{
        given,
        part(i),
        sides_[i].asked.input,
        max ? BagMode::kMax : BagMode::kSum};
    gradient.input.padding_idx = query().padding_idx;
    if (auto& weights = gradient.input.per_sample_weights;
        weights.has_value()) {
      weights = weights->to(given.scalar_type());
    }
    if (max) {
      gradient.argmax = argmax_[i].asked;
    }
    return gradient;
  }

  // grad . row for each entry, computed where the row is.
  void weight_gradients(
      ShardsRef given, ShardsRef shards, Gradients& result) const {
    Shards asked;
    for (size_t i = 0; i < sides_.size(); ++i) {
      asked.push_back(embedding_bag_weights_backward(
          given[i], shards[i], part(i), sides_[i].asked.input));
    }
    const auto own =
        move_(asked, each(sides_, asked_entries), each(sides_, sent_entries));
    for (size_t i = 0; i < sides_.size(); ++i) {
      if (has_weights(i)) {
        result.per_sample_weights[i] =
            at::zeros(input(i).indices.sizes(), own[i].options())
                .index_copy_(0, sides_[i].route.places, own[i]);
      }
    }
  }

  const at::ScalarType argmax_dtype_;
  const RowMover move_;
  const std::vector<Side> sides_;
  std::vector<Argmax> argmax_;
};

}  // namespace

LookupPtr make_pooled_lookup(
    LookupRequest request,
    const Handshake& handshake,
    std::vector<BagRoute> routes,
    at::ScalarType argmax_dtype) {
  return c10::make_intrusive<PooledLookup>(
      std::move(request), handshake, std::move(routes), argmax_dtype);
}

}  // namespace tessera::detail
