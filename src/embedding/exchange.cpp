#include "embedding/exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "comm/comm_event.h"
#include "dispatch/autograd.h"
#include "dispatch/grad_layout.h"
#include "kernels/lookup/embedding.h"
#include "kernels/lookup/route.h"
#include "tessera/language.h"
#include "tessera/shard_math.h"

namespace tessera::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What one rank asks of its group and what is asked of it.
struct Visit {
  Route route;         // the distinct indices it wants, by owner
  at::Tensor asked;    // the rows that others want of it, by who asks
  Parts asked_counts;  // how many of them each asks for
};

// Remembered for the backward pass: the gradients go where the rows came from.
struct Visits : torch::CustomClassHolder {
  std::vector<Visit> local;  // one a local position
  SpecPtr weight;
  SpecPtr output;
  ExchangeLayout layout;
  LookupArgs args;
};

Parts counts_of(const Route& route) {
  return {route.counts.begin(), route.counts.end()};
}

// Where each owner's rows begin, by coordinate; then the end of the table.
Sizes row_bounds(const Spec& weight, int64_t mesh_dim, int64_t position) {
  Sizes bounds{0};
  for (const int64_t peer : weight.mesh.group(position, mesh_dim)) {
    bounds.push_back(
        bounds.back() +
        local_range(weight.sizes[0], 0, weight.mesh, weight.placements, peer)
            .size);
  }
  return bounds;
}

class Exchange {
 public:
  Exchange(const Spec& weight, const ExchangeLayout& layout)
      : weight_(weight),
        mesh_(weight.mesh),
        at_{mesh_, layout.mesh_dim},
        ranks_(mesh_.size(layout.mesh_dim)),
        comm_(collectives(mesh_)) {}

  // Who wants what of whom.
  std::vector<Visit> visits(ShardsRef indices) {
    auto visits = routed(indices);
    swap_counts(visits);
    Shards wanted;
    for (const auto& visit : visits) {
      // The table's rows are numbered from 0: few tables need 8 bytes.
      wanted.push_back(visit.route.wanted.to(
          weight_.sizes[0] <= std::numeric_limits<int32_t>::max() ? at::kInt
                                                                  : at::kLong));
    }
    const auto asked = comm_.all_to_all_rows(
        at_, wanted, wanted_counts(visits), asked_counts(visits));
    for (size_t i = 0; i < visits.size(); ++i) {
      visits[i].asked = asked[i];
    }
    return visits;
  }

  // Rows that lie as they are asked for, to those who ask.
  Shards answer(c10::ArrayRef<Visit> visits, ShardsRef rows) {
    return comm_.all_to_all_rows(
        at_, rows, asked_counts(visits), wanted_counts(visits));
  }

  // Rows that lie as they are wanted, to their owners.
  Shards give_back(c10::ArrayRef<Visit> visits, ShardsRef rows) {
    return comm_.all_to_all_rows(
        at_, rows, wanted_counts(visits), asked_counts(visits));
  }

  Range rows_of(size_t local) const {
    return local_range(
        weight_.sizes[0],
        0,
        mesh_,
        weight_.placements,
        mesh_.local_positions()[local]);
  }

 private:
  // A rank with a bad index goes on without any: the others must learn of it.
  std::vector<Visit> routed(ShardsRef indices) {
    std::vector<Visit> visits;
    for (size_t i = 0; i < indices.size(); ++i) {
      const auto bounds =
          row_bounds(weight_, at_.dim, mesh_.local_positions()[i]);
      Visit visit;
      try {
        visit.route = route_rows(indices[i], bounds);
      } catch (const c10::IndexError& bad) {
        error_ = bad.what_without_backtrace();
        visit.route.counts.assign(ranks_, -1);
      }
      visits.push_back(std::move(visit));
    }
    return visits;
  }

  void swap_counts(std::vector<Visit>& visits) {
    // Only this mesh dimension's group sees the counts.
    if (mesh_.ndim() > 1) {
      comm_.agree(mesh_, error_, ErrorKind::Index);
    }
    Shards counts;
    for (const auto& visit : visits) {
      auto tensor = at::zeros({ranks_}, at::kLong);
      for (int64_t c = 0; c < ranks_; ++c) {
        tensor.data_ptr<int64_t>()[c] = visit.route.counts[c];
      }
      counts.push_back(std::move(tensor));
    }
    const std::vector<Parts> one_each(visits.size(), Parts(ranks_, 1));
    const auto asked = comm_.all_to_all_rows(at_, counts, one_each, one_each);
    bool bad = false;
    for (size_t i = 0; i < visits.size(); ++i) {
      const auto* count = asked[i].const_data_ptr<int64_t>();
      visits[i].asked_counts.assign(count, count + ranks_);
      bad |= *std::min_element(count, count + ranks_) < 0;
    }
    if (bad) {
      comm_.agree(mesh_, error_, ErrorKind::Index);
    }
  }

  static std::vector<Parts> wanted_counts(c10::ArrayRef<Visit> visits) {
    std::vector<Parts> counts;
    for (const auto& visit : visits) {
      counts.push_back(counts_of(visit.route));
    }
    return counts;
  }

  static std::vector<Parts> asked_counts(c10::ArrayRef<Visit> visits) {
    std::vector<Parts> counts;
    for (const auto& visit : visits) {
      counts.push_back(visit.asked_counts);
    }
    return counts;
  }

  const Spec& weight_;
  const DeviceMesh& mesh_;
  const MeshDim at_;
  const int64_t ranks_;
  Collectives& comm_;
  std::string error_;
};

Shards fetch(
    Exchange& exchange,
    const Spec& weight,
    c10::ArrayRef<Visit> visits,
    ShardsRef tables) {
  Shards rows;
  for (size_t i = 0; i < tables.size(); ++i) {
    rows.push_back(lookup_rows(
        tables[i],
        visits[i].asked,
        exchange.rows_of(i).begin,
        weight.sizes[0]));
  }
  const auto fetched = exchange.answer(visits, rows);
  Shards out;
  for (size_t i = 0; i < fetched.size(); ++i) {
    out.push_back(
        lookup_rows(fetched[i], visits[i].route.place, 0, fetched[i].size(0)));
  }
  return out;
}

// Gradients of equal rows are added up before they are sent.
Shards table_gradients(
    Exchange& exchange, const Visits& visits, ShardsRef grads) {
  Shards sums;
  for (size_t i = 0; i < grads.size(); ++i) {
    const auto& route = visits.local[i].route;
    const int64_t count = route.wanted.size(0);
    sums.push_back(lookup_rows_backward(
        grads[i], route.place, 0, count, count, -1, false));
  }
  const auto given = exchange.give_back(visits.local, sums);
  Shards tables;
  for (size_t i = 0; i < given.size(); ++i) {
    const auto held = exchange.rows_of(i);
    const auto& asked = visits.local[i].asked;
    const int64_t rows = visits.weight->sizes[0];
    tables.push_back(
        visits.args.sparse ? lookup_rows_sparse_backward(
                                 given[i],
                                 asked,
                                 held.begin,
                                 held.size,
                                 rows,
                                 visits.args.padding_idx)
                           : lookup_rows_backward(
                                 given[i],
                                 asked,
                                 held.begin,
                                 held.size,
                                 rows,
                                 visits.args.padding_idx,
                                 false));
  }
  return tables;
}

class ExchangeLookup : public torch::autograd::Function<ExchangeLookup> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& weight,
      const at::Tensor& indices,
      c10::intrusive_ptr<Visits> visits) {
    const CommCauseGuard cause(kLookupCause);
    const auto& table = distributed_meta(weight);
    Exchange exchange(*table.spec, visits->layout);
    visits->local = exchange.visits(current_shards(indices));
    auto rows =
        fetch(exchange, *table.spec, visits->local, current_shards(weight));
    ctx->save_for_backward({indices});
    ctx->saved_data["visits"] = c10::IValue::make_capsule(visits);
    return make_distributed(visits->output, std::move(rows));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& visits =
        *static_cast<Visits*>(ctx->saved_data["visits"].toCapsule().get());
    TORCH_CHECK_NOT_IMPLEMENTED(
        !(at::GradMode::is_enabled() && grads[0].requires_grad()),
        "[embedding] the backward of an exchange cannot be differentiated "
        "again: ",
        spell("hold an EmbeddingScope with LookupStrategy::Gather"));
    const auto grad =
        grad_in_layout(grads[0], visits.weight->mesh, visits.layout.output);
    const CommCauseGuard cause("aten::embedding_backward");
    Exchange exchange(*visits.weight, visits.layout);
    auto tables = table_gradients(exchange, visits, current_shards(grad));
    auto spec = Spec::make(
        visits.weight->mesh,
        visits.layout.gradient,
        visits.weight->sizes,
        visits.weight->dtype);
    return {
        make_distributed(std::move(spec), std::move(tables)),
        at::Tensor(),
        at::Tensor()};
  }
};

}  // namespace

std::optional<ExchangeLayout> exchange_layout(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args) {
  const Spec& table = *distributed_meta(weight).spec;
  const Spec& batch = *distributed_meta(indices).spec;
  if (args.scale_grad_by_freq || weight.is_meta() || indices.is_meta()) {
    return std::nullopt;
  }
  ExchangeLayout layout{-1, batch.placements, table.placements};
  for (int64_t m = 0; m < table.mesh.ndim(); ++m) {
    const Placement& rows = table.placements[m];
    const Placement& cut = batch.placements[m];
    if (table.mesh.size(m) == 1) {
      continue;
    }
    if (rows.is_shard(0) && cut.is_shard() && layout.mesh_dim < 0) {
      layout.mesh_dim = m;
    } else if (rows.is_shard(1) && cut.is_replicate()) {
      layout.output[m] = Shard(indices.dim());
    } else if (rows.is_replicate() && cut.is_shard()) {
      if (args.sparse) {
        return std::nullopt;  // a sparse gradient cannot be reduced
      }
      layout.gradient[m] = Partial();
    } else if (!(rows.is_replicate() && cut.is_replicate())) {
      return std::nullopt;
    }
  }
  return layout.mesh_dim < 0 ? std::nullopt : std::optional(layout);
}

at::Tensor exchange_lookup(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const LookupArgs& args,
    const ExchangeLayout& layout) {
  const auto& table = distributed_meta(weight).spec;
  auto visits = c10::make_intrusive<Visits>();
  Sizes sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  visits->weight = table;
  visits->output = Spec::make(table->mesh, layout.output, sizes, table->dtype);
  visits->layout = layout;
  visits->args = args;
  check_current(weight);
  check_current(indices);
  keep_grad_layouts(weight);
  return ExchangeLookup::apply(weight, indices, std::move(visits));
}

}  // namespace tessera::detail
