#include "embedding/lookups.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "embedding/hand_written.h"
#include "tessera/dtensor.h"
#include "tessera/embedding.h"

namespace tessera::bench {

namespace {

// Frequent rows lie anywhere: a prime that does not divide the table's size.
constexpr int64_t kScatter = 7919;
constexpr double kZipfExponent = 1.05;

class Maker {
 public:
  Maker(const DeviceMesh& mesh, RawGroup& group, const TableSize& size)
      : mesh_(mesh),
        group_(group),
        held_(size.rows / group.size()),
        part_(size.indices / group.size()),
        shard_(at::rand({held_, size.columns})),
        weight_(DTensor::from_local(shard_, mesh, {Shard(0)})
                    .detach()
                    .requires_grad_()),
        hand_(group, shard_, group.rank() * held_),
        grad_(at::rand({size.indices, size.columns})) {
    // Every rank's copy of a replicated tensor is the same.
    for (int64_t r = 0; r < group_.size(); ++r) {
      auto mine = grad_.narrow(0, r * part_, part_);
      mine.fill_(0.25 * static_cast<double>(r + 1));
    }
    full_grad_ = DTensor::from_local(grad_, mesh, {Replicate()});
    part_grad_ = DTensor::from_local(mine(grad_), mesh, {Shard(0)});
    reduced_ = at::full({part_, size.columns}, 0.5);
    exchanged_ = at::full({size.indices, size.columns}, 0.5);
    scratch_ = at::full({size.indices, size.columns}, 0.5);
  }

  void add(const std::string& name, const at::Tensor& indices) {
    replicated(name + ", replicated", indices);
    batches(name + ", batch-sharded", indices);
  }

  std::vector<Lookup> take() { return std::move(lookups_); }

 private:
  using Run = std::function<at::Tensor()>;

  at::Tensor mine(const at::Tensor& whole) const {
    return whole.narrow(0, group_.rank() * part_, part_).contiguous();
  }

  static Run without_gradients(Run run) {
    return [run = std::move(run)] {
      const c10::NoGradGuard no_grad;
      return run();
    };
  }

  void add_forward(const std::string& name, std::vector<Variant> variants) {
    for (auto& variant : variants) {
      variant.run = without_gradients(std::move(variant.run));
    }
    lookups_.push_back({name, std::move(variants)});
  }

  at::Tensor ours(const at::Tensor& ids, bool sparse = false) const {
    return at::embedding(weight_, ids, -1, false, sparse);
  }

  at::Tensor our_gradient() const {
    auto result = DTensor(weight_.grad()).to_local();
    weight_.mutable_grad() = at::Tensor();
    return result;
  }

  void replicated(const std::string& name, const at::Tensor& indices) {
    const at::Tensor ids = DTensor::from_local(indices, mesh_, {Replicate()});
    const int64_t first = group_.rank() * held_;
    const auto owned =
        indices.masked_select(indices.ge(first) & indices.lt(first + held_))
            .sub(first);
    add_forward(
        name + ": forward",
        {{"ours", [this, ids] { return DTensor(ours(ids)).to_local(); }},
         {"hand-written",
          [this, indices] { return hand_.rows(indices, false); }},
         {"owned rows + zero fill", [this, owned, indices] {
            // The rows that this rank has, without finding out which they are.
            const auto rows = at::embedding(shard_, owned);
            const auto zeros =
                at::zeros({indices.size(0) - owned.size(0), shard_.size(1)});
            return at::Tensor();
          }}});
    add_forward(
        name + ": to full",
        {{"ours", [this, ids] { return DTensor(ours(ids)).full_tensor(); }},
         {"hand-written",
          [this, indices] { return hand_.full(hand_.rows(indices, false)); }},
         {"raw all_reduce", [this] {
            group_.all_reduce(scratch_);
            return at::Tensor();
          }}});
    add_forward(
        name + ": to S(0)",
        {{"ours",
          [this, ids] {
            return DTensor(ours(ids)).redistribute({Shard(0)}).to_local();
          }},
         {"hand-written",
          [this, indices] { return hand_.part(hand_.rows(indices, false)); }},
         {"raw reduce_scatter",
          [this] {
            group_.reduce_scatter(reduced_, grad_);
            return at::Tensor();
          }},
         {"raw all_to_all + sum", [this] {
            group_.all_to_all(exchanged_, grad_);
            at::sum_out(
                reduced_, exchanged_.view({group_.size(), part_, -1}), 0);
            return at::Tensor();
          }}});
    for (const bool sparse : {false, true}) {
      const std::string kind = sparse ? ", sparse" : ", dense";
      lookups_.push_back(
          {name + ": forward+backward" + kind,
           {{"ours",
             [this, ids, sparse] {
               ours(ids, sparse).backward(full_grad_);
               return our_gradient();
             }},
            {"hand-written", [this, indices, sparse] {
               return hand_.gradient(hand_.rows(indices, sparse), grad_);
             }}}});
      lookups_.push_back(
          {name + ": to full, forward+backward" + kind,
           {{"ours",
             [this, ids, sparse] {
               DTensor(ours(ids, sparse)).full_tensor().backward(grad_);
               return our_gradient();
             }},
            {"hand-written", [this, indices, sparse] {
               const auto rows = hand_.rows(indices, sparse);
               hand_.full(rows.detach().clone());
               return hand_.gradient(rows, grad_);
             }}}});
    }
  }

  void batches(const std::string& name, const at::Tensor& indices) {
    const auto local = mine(indices);
    const at::Tensor ids = DTensor::from_local(local, mesh_, {Shard(0)});
    const auto our_rows = [this, ids](LookupStrategy strategy, bool sparse) {
      const EmbeddingScope scope({.strategy = strategy});
      return ours(ids, sparse);
    };
    const std::vector<std::pair<std::string, LookupStrategy>> variants{
        {"ours", LookupStrategy::Cheapest},
        {"ours, Gather", LookupStrategy::Gather},
        {"ours, Exchange", LookupStrategy::Exchange}};
    std::vector<Variant> forward;
    for (const auto& [variant_name, variant] : variants) {
      forward.push_back({variant_name, [our_rows, variant = variant] {
                           return DTensor(our_rows(variant, false)).to_local();
                         }});
    }
    forward.push_back({"hand-written", [this, local] {
                         return hand_.part(
                             hand_.rows(hand_.gathered(local), false));
                       }});
    forward.push_back({"raw all_to_all of the rows", [this] {
                         auto out = exchanged_.narrow(0, 0, part_);
                         group_.all_to_all(out, reduced_);
                         return at::Tensor();
                       }});
    add_forward(name + ": forward", std::move(forward));
    for (const bool sparse : {false, true}) {
      std::vector<Variant> both;
      for (const auto& [variant_name, variant] : variants) {
        both.push_back(
            {variant_name, [this, our_rows, sparse, variant = variant] {
               our_rows(variant, sparse).backward(part_grad_);
               return our_gradient();
             }});
      }
      both.push_back(
          {"hand-written", [this, local, sparse] {
             const auto rows = hand_.rows(hand_.gathered(local), sparse);
             hand_.part(rows);
             return hand_.gradient(rows, hand_.gathered(mine(grad_)));
           }});
      lookups_.push_back(
          {name + ": forward+backward" + (sparse ? ", sparse" : ", dense"),
           std::move(both)});
    }
  }

  const DeviceMesh mesh_;
  RawGroup& group_;
  const int64_t held_;
  const int64_t part_;
  const at::Tensor shard_;
  const at::Tensor weight_;
  const HandWritten hand_;
  at::Tensor grad_;
  at::Tensor full_grad_;
  at::Tensor part_grad_;
  at::Tensor reduced_;
  at::Tensor exchanged_;
  at::Tensor scratch_;
  std::vector<Lookup> lookups_;
};

}  // namespace

at::Tensor uniform_indices(int64_t rows, int64_t count) {
  at::manual_seed(1);
  return at::randint(rows, {count}, at::kLong);
}

at::Tensor zipf_indices(int64_t rows, int64_t count) {
  at::manual_seed(2);
  const auto share =
      at::arange(1, rows + 1, at::kDouble).pow(-kZipfExponent).cumsum(0);
  const auto ranks = at::searchsorted(
      share, at::rand({count}, at::kDouble).mul(share[rows - 1]));
  return ranks.clamp_max(rows - 1).mul(kScatter).remainder(rows);
}

std::vector<Lookup> lookups(
    const DeviceMesh& mesh, RawGroup& group, const TableSize& size) {
  // The variants refer to its table for as long as the program runs.
  static Maker* maker = nullptr;
  TORCH_CHECK(maker == nullptr, "lookups() may be called once");
  maker = new Maker(mesh, group, size);
  maker->add("uniform", uniform_indices(size.rows, size.indices));
  maker->add("zipf", zipf_indices(size.rows, size.indices));
  return maker->take();
}

}  // namespace tessera::bench
