#include "comm/process/device_group.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "comm/async_errors.h"
#include "comm/blocking_scope.h"
#include "comm/counting.h"
#include "comm/errors.h"
#include "comm/flight_recorder.h"
#include "comm/process/watchdog.h"
#include "comm/reduce.h"
#include "comm/result.h"

namespace tessera::detail {

namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Pieces = c10::SmallVector<at::Tensor, 8>;

// Up to this size an all_reduce sends everything to everyone: one collective
// instead of two.
constexpr int64_t kGatheredBytes = int64_t{256} << 10;

// What a backend moves, whatever the dtype.
at::Tensor as_bytes(const at::Tensor& flat) { return flat.view(at::kByte); }

at::Tensor empty_flat(const at::Tensor& like, int64_t elements) {
  return at::empty({elements}, like.options());
}

Parts times(const Parts& parts, int64_t factor) {
  Parts scaled;
  for (const int64_t part : parts) scaled.push_back(part * factor);
  return scaled;
}

std::vector<int64_t> byte_counts(const Parts& parts, const at::Tensor& like) {
  std::vector<int64_t> counts;
  for (const int64_t part : parts) counts.push_back(part * like.element_size());
  return counts;
}

// The slices along `dim` of a tensor of `sizes`, laid out one after the other
// in `flat`, each with `dim` outermost.
Pieces slices_of(
    const at::Tensor& flat,
    c10::IntArrayRef sizes,
    int64_t dim,
    const Parts& starts,
    const Parts& parts) {
  Sizes shape{0};
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (static_cast<int64_t>(d) != dim) shape.push_back(sizes[d]);
  }
  Pieces pieces;
  for (size_t c = 0; c < parts.size(); ++c) {
    shape[0] = parts[c];
    const int64_t elements = c10::multiply_integers(shape);
    pieces.push_back(
        flat.narrow(0, starts[c], elements).view(shape).movedim(0, dim));
  }
  return pieces;
}

// Elements of one slice along `dim`.
int64_t slice_elements(const at::Tensor& shard, int64_t dim) {
  int64_t elements = 1;
  for (int64_t d = 0; d < shard.dim(); ++d) {
    if (d != dim) elements *= shard.size(d);
  }
  return elements;
}

}  // namespace

struct DeviceGroup::State {
  explicit State(DeviceBackend made) : backend(std::move(made)) {}

  std::string error() {
    const std::lock_guard lock(mutex);
    return text;
  }
  // Nothing more is sent or received.
  void fail(const std::string& why) {
    {
      const std::lock_guard lock(mutex);
      if (!text.empty()) return;
      text = why;
    }
    backend.backend->abort();
  }

  DeviceBackend backend;
  std::mutex mutex;
  std::string text;
};

// One collective of the group: refused if the group has failed, watched once it
// is on its way.
class DeviceGroup::Launch {
 public:
  Launch(DeviceGroup& group, const Call& call)
      : group_(group), call_(call), lock_(group.mutex_) {
    const std::string error = group.state_->error();
    TORCH_CHECK(
        error.empty(),
        "[",
        name(call.collective),
        "] rank ",
        rank(),
        " can no longer use ",
        describe_group(group.ranks_, call),
        ", which has failed before: ",
        error);
  }

  template <typename Start>
  void run(const Start& start) {
    const auto& state = group_.state_;
    const auto begin = Clock::now();
    const Flight flight(
        group_.flight_group_,
        ++group_.sequence_,
        name(call_.collective),
        call_.bytes,
        current_comm_cause(),
        begin);
    try {
      const WorkPtr work = start(*state->backend.backend);
      // On the current stream: there is nothing to wait for.
      if (work) work->wait();
    } catch (const std::exception& error) {
      const std::string text = describe(" failed in ", cause_of(error));
      flight.end(true);
      state->fail(text);
      TORCH_CHECK(false, text, flight_report(rank()));
    }
    std::function<bool()> done;
    if (state->backend.mark) done = state->backend.mark();
    if (!done) {
      flight.end(false);
      return;
    }
    Watchdog::instance().watch(
        {&group_,
         after(begin, call_.timeout),
         [done = std::move(done), flight] {
           if (!done()) return false;
           flight.end(false);
           return true;
         },
         state->backend.failure,
         // The mesh may have gone by then: its text is made now.
         [state,
          flight,
          rank = rank(),
          late = describe(
              c10::str(" waited ", call_.timeout.count(), " ms in "),
              "it was not done in time"),
          lost = describe(" failed in ", "")](const std::string& failure) {
           const std::string text = failure.empty() ? late : lost + failure;
           flight.end(true);
           post_async_error(text + flight_report(rank));
           state->fail(text);
         }});
  }

 private:
  int64_t rank() const { return group_.ranks_[group_.coordinate_]; }
  std::string describe(const std::string& what, const std::string& why) const {
    return c10::str(
        "[",
        name(call_.collective),
        "] rank ",
        rank(),
        what,
        describe_group(group_.ranks_, call_),
        ", on its GPU: ",
        why);
  }

  const BlockingScope blocking_;
  DeviceGroup& group_;
  const Call& call_;
  const std::lock_guard<std::mutex> lock_;
};

DeviceGroup::DeviceGroup(
    std::vector<int64_t> ranks, int64_t coordinate, DeviceBackend backend)
    : ranks_(std::move(ranks)),
      coordinate_(coordinate),
      state_(std::make_shared<State>(std::move(backend))),
      flight_group_(new_flight_group(
          "device " + c10::str(c10::ArrayRef<int64_t>(ranks_)), ranks_)) {}

DeviceGroup::~DeviceGroup() { Watchdog::instance().forget(this); }

void DeviceGroup::exchange(
    const Call& call,
    const at::Tensor& from,
    const Parts& sent,
    const at::Tensor& into,
    const Parts& received) {
  Launch(*this, call).run([&](c10d::Backend& backend) {
    at::Tensor out = as_bytes(into);
    at::Tensor in = as_bytes(from);
    auto out_counts = byte_counts(received, into);
    auto in_counts = byte_counts(sent, from);
    c10d::AllToAllOptions options;
    options.asyncOp = false;
    return backend.alltoall_base(out, in, out_counts, in_counts, options);
  });
}

void DeviceGroup::gather(
    const Call& call, const at::Tensor& from, const at::Tensor& into) {
  Launch(*this, call).run([&](c10d::Backend& backend) {
    at::Tensor out = as_bytes(into);
    at::Tensor in = as_bytes(from);
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    return backend._allgather_base(out, in, options);
  });
}

at::Tensor DeviceGroup::all_reduce(
    const Call& call, const at::Tensor& in, ReduceOp op) {
  const at::Tensor mine = packed(in).view({-1});
  const int64_t elements = mine.numel();
  if (elements == 0) return fresh_copy(in);
  const int64_t n = size();
  const auto terms_in = [&](const at::Tensor& all, int64_t each) {
    Pieces terms;
    for (int64_t c = 0; c < n; ++c) {
      terms.push_back(all.narrow(0, c * each, each));
    }
    return terms;
  };
  if (static_cast<int64_t>(mine.nbytes()) <= kGatheredBytes) {
    const at::Tensor all = empty_flat(mine, n * elements);
    gather(call, mine, all);
    const at::Tensor out = at::empty(in.sizes(), mine.options());
    reduce_into(out.view({-1}), terms_in(all, elements), op);
    return out;
  }
  // Each rank reduces a block, of which the last ones may be short or empty.
  const int64_t block = (elements + n - 1) / n;
  Parts blocks;
  for (int64_t c = 0; c < n; ++c) {
    blocks.push_back(std::clamp(elements - c * block, int64_t{0}, block));
  }
  const int64_t held = blocks[coordinate_];
  const at::Tensor terms = empty_flat(mine, n * held);
  exchange(call, mine, blocks, terms, Parts(n, held));
  const at::Tensor all = empty_flat(mine, n * block);
  const at::Tensor place = all.narrow(0, coordinate_ * block, block);
  if (held > 0)
    reduce_into(place.narrow(0, 0, held), terms_in(terms, held), op);
  gather(call, place, all);
  return all.narrow(0, 0, elements).view(in.sizes());
}

at::Tensor DeviceGroup::all_gather(
    const Call& call, const at::Tensor& in, int64_t dim, const Parts& parts) {
  const at::Tensor out = empty_resized(in, dim, total(parts));
  if (out.numel() == 0) return out;
  const int64_t n = size();
  const int64_t slice = slice_elements(in, dim);
  const int64_t largest = *std::max_element(parts.begin(), parts.end());
  const bool even = total(parts) == n * largest;
  at::Tensor mine = packed(in.movedim(dim, 0)).view({-1});
  if (!even) {
    // Backends gather equal shares: the smaller ones are sent with slack.
    const at::Tensor padded = empty_flat(mine, largest * slice);
    padded.narrow(0, 0, mine.numel()).copy_(mine);
    mine = padded;
  }
  if (even && outermost(out.sizes(), dim)) {
    gather(call, mine, out.view({-1}));
    return out;
  }
  const at::Tensor all = empty_flat(mine, n * largest * slice);
  gather(call, mine, all);
  Parts starts;
  for (int64_t c = 0; c < n; ++c) starts.push_back(c * largest * slice);
  concatenate(out, slices_of(all, in.sizes(), dim, starts, parts), dim);
  return out;
}

at::Tensor DeviceGroup::reduce_scatter(
    const Call& call,
    const at::Tensor& in,
    int64_t dim,
    const Parts& parts,
    ReduceOp op) {
  const int64_t n = size();
  const int64_t held = parts[coordinate_];
  const int64_t slice = slice_elements(in, dim);
  const at::Tensor out = empty_resized(in, dim, held);
  if (in.numel() == 0) return out;
  const at::Tensor mine = packed(in.movedim(dim, 0)).view({-1});
  const at::Tensor terms = empty_flat(mine, n * held * slice);
  exchange(call, mine, times(parts, slice), terms, Parts(n, held * slice));
  if (held == 0) return out;
  Parts starts;
  for (int64_t c = 0; c < n; ++c) starts.push_back(c * held * slice);
  reduce_into(
      out, slices_of(terms, in.sizes(), dim, starts, Parts(n, held)), op);
  return out;
}

at::Tensor DeviceGroup::all_to_all(
    const Call& call,
    const at::Tensor& in,
    int64_t split_dim,
    const Parts& split,
    int64_t concat_dim,
    const Parts& concat) {
  const int64_t held = split[coordinate_];
  const at::Tensor out =
      empty_exchanged(in, split_dim, held, concat_dim, total(concat));
  // Of each rank's shard: everything but the two dimensions.
  int64_t cell = 1;
  for (int64_t d = 0; d < in.dim(); ++d) {
    if (d != split_dim && d != concat_dim) cell *= in.size(d);
  }
  if (total(split) * total(concat) * cell == 0) return out;
  const at::Tensor mine = packed(in.movedim(split_dim, 0)).view({-1});
  const at::Tensor theirs = empty_flat(mine, out.numel());
  exchange(
      call,
      mine,
      times(split, concat[coordinate_] * cell),
      theirs,
      times(concat, held * cell));
  if (out.numel() == 0) return out;
  Pieces pieces;
  int64_t start = 0;
  for (const int64_t size : concat) {
    Sizes shape(in.sizes().begin(), in.sizes().end());
    shape[concat_dim] = size;
    const int64_t elements = held * size * cell;
    pieces.push_back(
        slices_of(theirs, shape, split_dim, Parts{start}, Parts{held})[0]);
    start += elements;
  }
  concatenate(out, pieces, concat_dim);
  return out;
}

at::Tensor DeviceGroup::broadcast(const Call& call, const at::Tensor& in) {
  at::Tensor out =
      coordinate_ == 0 ? fresh_copy(in) : at::empty(in.sizes(), in.options());
  if (out.numel() == 0) return out;
  Launch(*this, call).run([&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{as_bytes(out.view({-1}))};
    c10d::BroadcastOptions options;
    options.asyncOp = false;
    return backend.broadcast(tensors, options);
  });
  return out;
}

at::Tensor DeviceGroup::scatter(
    const Call& call, const at::Tensor& in, int64_t dim, const Parts& parts) {
  const int64_t held = parts[coordinate_];
  if (in.numel() == 0) return empty_resized(in, dim, held);
  const int64_t slice = slice_elements(in, dim);
  const Parts nothing(size(), 0);
  Parts received = nothing;
  received[0] = held * slice;
  const at::Tensor out = empty_flat(in, held * slice);
  if (coordinate_ == 0) {
    const at::Tensor mine = packed(in.movedim(dim, 0)).view({-1});
    exchange(call, mine, times(parts, slice), out, received);
  } else {
    exchange(call, empty_flat(in, 0), nothing, out, received);
  }
  return slices_of(out, in.sizes(), dim, Parts{0}, Parts{held})[0].contiguous();
}

at::Tensor DeviceGroup::all_to_all_rows(
    const Call& call,
    const at::Tensor& in,
    const Parts& sent,
    const Parts& received) {
  const at::Tensor out = empty_resized(in, 0, total(received));
  const int64_t row = slice_elements(in, 0);
  if (row == 0) return out;
  exchange(
      call,
      packed(in).view({-1}),
      times(sent, row),
      out.view({-1}),
      times(received, row));
  return out;
}

}  // namespace tessera::detail
