#include "redistribute/moves.h"

#include <ATen/ATen.h>

#include "tessera/dtensor.h"

namespace tessera::bench {

namespace {

Method ours(const DTensor& tensor, const Placement& to) {
  return {
      "ours", nullptr, [=] { return tensor.redistribute({to}).to_local(); }};
}

// Memory that has been touched, so that no page fault is measured.
at::Tensor touched(at::IntArrayRef sizes) { return at::full(sizes, 0.5); }

// out[i] = the sum over k of in[k][i], as one pass.
void sum_pieces(at::Tensor& out, const at::Tensor& in, int64_t ranks) {
  const auto rows = out.size(0);
  at::sum_out(out, in.view({ranks, rows, -1}), 0);
}

class Maker {
 public:
  Maker(const DeviceMesh& mesh, RawGroup& group, int64_t n)
      : mesh_(mesh),
        group_(group),
        n_(n),
        rows_(n / group.size()),
        shard_(at::rand({rows_, n_})),
        whole_(at::rand({n_, n_})),
        out_whole_(touched({n_, n_})),
        out_rows_(touched({rows_, n_})) {}

  Move shard_to_replicate() {
    return {
        "S(0)->R",
        ours(make(shard_, Shard(0)), Replicate()),
        {{"all_gather",
          nullptr,
          [this] {
            group_.all_gather(out_whole_, shard_);
            return out_whole_;
          }},
         {"all_gather into a list", nullptr, [this] {
            group_.all_gather_list(out_whole_, shard_);
            return out_whole_;
          }}}};
  }

  Move shard_to_other_shard() {
    packed_ = touched({n_, rows_});
    out_columns_ = touched({n_, rows_});
    return {
        "S(0)->S(1)",
        ours(make(shard_, Shard(0)), Shard(1)),
        {{"pack + all_to_all",
          nullptr,
          [this] {
            packed_.view({group_.size(), rows_, rows_})
                .copy_(
                    shard_.view({rows_, group_.size(), rows_}).transpose(0, 1));
            group_.all_to_all(out_columns_, packed_);
            return out_columns_;
          }},
         {"all_to_all of packed bytes", nullptr, [this] {
            group_.all_to_all(out_columns_, packed_);
            return at::Tensor();
          }}}};
  }

  Move partial_to_replicate() {
    return {
        "P->R",
        ours(make(whole_, Partial()), Replicate()),
        {{"all_reduce in place",
          [this] { out_whole_.copy_(whole_); },
          [this] {
            group_.all_reduce(out_whole_);
            return out_whole_;
          }},
         {"all_to_all + sum + all_gather", nullptr, [this] {
            exchange_and_sum();
            group_.all_gather(out_whole_, out_rows_);
            return out_whole_;
          }}}};
  }

  Move partial_to_shard() {
    return {
        "P->S(0)",
        ours(make(whole_, Partial()), Shard(0)),
        {{"reduce_scatter",
          nullptr,
          [this] {
            group_.reduce_scatter(out_rows_, whole_);
            return out_rows_;
          }},
         {"all_to_all + sum", nullptr, [this] {
            exchange_and_sum();
            return out_rows_;
          }}}};
  }

  Move replicate_to_shard() {
    // Every rank's copy is the same.
    const auto same = at::arange(n_ * n_, at::kFloat).view({n_, n_});
    return {
        "R->S(0)",
        ours(make(same, Replicate()), Shard(0)),
        {{"copy of the rows", nullptr, [this, same] {
            out_rows_.copy_(same.narrow(0, group_.rank() * rows_, rows_));
            return out_rows_;
          }}}};
  }

 private:
  DTensor make(const at::Tensor& local, const Placement& placement) {
    return DTensor::from_local(local, mesh_, {placement});
  }

  void exchange_and_sum() {
    if (!exchanged_.defined()) {
      exchanged_ = touched({n_, n_});
    }
    group_.all_to_all(exchanged_, whole_);
    sum_pieces(out_rows_, exchanged_, group_.size());
  }

  const DeviceMesh mesh_;
  RawGroup& group_;
  const int64_t n_;
  const int64_t rows_;
  const at::Tensor shard_;
  const at::Tensor whole_;
  at::Tensor out_whole_;
  at::Tensor out_rows_;
  at::Tensor packed_;
  at::Tensor out_columns_;
  at::Tensor exchanged_;
};

}  // namespace

std::vector<Move> moves(const DeviceMesh& mesh, RawGroup& group, int64_t n) {
  // The methods refer to its buffers for as long as the program runs.
  static Maker* maker = nullptr;
  TORCH_CHECK(maker == nullptr, "moves() may be called once");
  maker = new Maker(mesh, group, n);
  return {
      maker->shard_to_replicate(),
      maker->shard_to_other_shard(),
      maker->partial_to_replicate(),
      maker->partial_to_shard(),
      maker->replicate_to_shard()};
}

}  // namespace tessera::bench
