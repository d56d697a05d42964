// Lookups, bags, their gradients and updates on one GPU, beside torch's own
// kernels in the same run. Distributed tensors on simulated ranks of that GPU.
//
//   bench_gpu         prints a table in Markdown
//   bench_gpu small   only the host's time for small ops
//
// Bytes are those that the work must move, each row that is looked up counted
// as often as it is: what caches save shows as more than the copy's bandwidth.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <tuple>
#include <vector>

#include "kernels/bag/bag.h"
#include "kernels/cuda/call.h"
#include "kernels/lookup/embedding.h"
#include "kernels/lookup/route.h"
#include "tessera/tessera.h"
#include "timing.h"

namespace ts = tessera;
using ts::benchmark::host_microseconds;
using ts::benchmark::loop_microseconds;
using ts::benchmark::milliseconds;
using ts::benchmark::Table;

namespace {

constexpr int64_t kIndices = 4'194'304;
constexpr int64_t kBagLength = 32;
constexpr int64_t kBags = kIndices / kBagLength;
constexpr int64_t kFloats = 1'280'000'000;  // of every table

at::TensorOptions gpu(at::ScalarType dtype) {
  return at::TensorOptions(dtype).device(at::kCUDA);
}

struct Case {
  std::string name;
  at::Tensor table;
  at::Tensor indices;
  double distinct;

  int64_t rows() const { return table.size(0); }
  // Of a row.
  double row_bytes() const {
    return static_cast<double>(table.size(1) * table.element_size());
  }
};

Case make_case(
    const at::Tensor& memory, int64_t width, at::ScalarType dtype, bool zipf) {
  Case c;
  c.table = (dtype == at::kFloat ? memory : memory.view(dtype))
                .flatten()
                .slice(0, 0, kFloats)
                .view({kFloats / width, width});
  const auto rows = c.rows();
  if (zipf) {
    // The k-th row is named 1/k as often as the first.
    c.indices = at::rand({kIndices}, gpu(at::kDouble))
                    .mul(std::log(static_cast<double>(rows)))
                    .exp()
                    .to(at::kLong)
                    .clamp_max(rows - 1)
                    .mul(7'919)
                    .remainder(rows);
  } else {
    c.indices = at::randint(rows, {kIndices}, gpu(at::kLong));
  }
  c.distinct =
      static_cast<double>(std::get<0>(at::_unique2(c.indices)).numel());
  c.name = std::string(zipf ? "Zipf" : "uniform") + ", " +
           std::to_string(width) + (dtype == at::kHalf ? " halves" : "");
  return c;
}

// `c.table` over `ranks` simulated ranks, and indices on each.
struct Placed {
  Placed(const Case& c, int64_t ranks, bool grad)
      : world(ts::World::simulate(ranks)),
        mesh(ts::init_device_mesh("cuda", {ranks})),
        table(ts::distribute_tensor(
            c.table.detach().requires_grad_(grad), mesh, {ts::Shard(0)})),
        indices(ts::distribute_tensor(c.indices, mesh, {ts::Replicate()})) {}

  ts::World world;
  ts::DeviceMesh mesh;
  at::Tensor table;
  at::Tensor indices;
};

void lookups(const Table& out, const Case& c, bool with_ranks) {
  const c10::InferenceMode inference;
  const double bytes = kIndices * (2 * c.row_bytes() + 8);
  const std::string name = "lookup, " + c.name;
  {
    const Placed one(c, 1, false);
    out.add(
        name,
        "ours, 1 rank",
        milliseconds([&] { at::embedding(one.table, one.indices); }),
        bytes,
        ">= 80%");
  }
  out.add(
      name,
      "torch",
      milliseconds([&] { at::embedding(c.table, c.indices); }),
      bytes);
  if (!with_ranks) {
    return;
  }
  const Placed four(c, 4, false);
  // Each rank reads the indices and writes all rows, zeros for most.
  out.add(
      name,
      "ours, 4 ranks",
      milliseconds([&] { at::embedding(four.table, four.indices); }),
      kIndices * (5 * c.row_bytes() + 4 * 8),
      ">= 80%");
  const auto by_torch = [&] {
    for (int64_t r = 0; r < 4; ++r) {
      const int64_t first = r * c.rows() / 4;
      const auto local = c.indices.sub(first);
      const auto away = local.lt(0).logical_or_(local.ge(c.rows() / 4));
      c.table.narrow(0, first, c.rows() / 4)
          .index_select(0, local.masked_fill(away, 0))
          .masked_fill_(away.unsqueeze(1), 0);
    }
  };
  out.add(
      name,
      "torch's ops, 4 ranks",
      milliseconds(by_torch),
      kIndices * (5 * c.row_bytes() + 4 * 8));
}

void bags(const Table& out, const Case& c) {
  const c10::InferenceMode inference;
  const auto offsets = at::arange(kBags, gpu(at::kLong)).mul(kBagLength);
  const Placed one(c, 1, false);
  const auto placed_offsets =
      ts::distribute_tensor(offsets, one.mesh, {ts::Replicate()});
  const char* const names[] = {"sum", "mean", "max"};
  for (const int64_t mode : {0, 1, 2}) {
    const double bytes = kIndices * (c.row_bytes() + 8) +
                         kBags * (c.row_bytes() + 8) * (mode == 2 ? 2 : 1);
    const std::string name =
        std::string("bag ") + names[mode] + " of 32, " + c.name;
    out.add(
        name,
        "ours",
        milliseconds([&] {
          at::embedding_bag(
              one.table, one.indices, placed_offsets, false, mode);
        }),
        bytes,
        ">= 71%");
    out.add(
        name,
        "torch",
        milliseconds([&] {
          at::embedding_bag(c.table, c.indices, offsets, false, mode);
        }),
        bytes);
  }
}

void gradients(const Table& out, const Case& c, bool sparse) {
  const auto grad = at::ones({kIndices, c.table.size(1)}, c.table.options());
  const std::string name =
      std::string(sparse ? "forward + sparse" : "forward + dense") +
      " backward, " + c.name;
  // Rows read and written; gradients read, the table's gradient written.
  const double bytes =
      c.row_bytes() *
      (3.0 * kIndices + (sparse ? c.distinct : static_cast<double>(c.rows())));
  {
    const Placed one(c, 1, true);
    const auto placed =
        ts::distribute_tensor(grad, one.mesh, {ts::Replicate()});
    out.add(
        name,
        "ours",
        milliseconds([&] {
          one.table.mutable_grad() = at::Tensor();
          at::embedding(one.table, one.indices, -1, false, sparse)
              .backward(placed);
        }),
        bytes,
        sparse ? "" : "<= 6 ms");
  }
  const auto plain = c.table.detach().requires_grad_();
  out.add(
      name,
      "torch",
      milliseconds(
          [&] {
            plain.mutable_grad() = at::Tensor();
            at::embedding(plain, c.indices, -1, false, sparse).backward(grad);
          },
          5),
      bytes);
}

// Of `milliseconds` of an update: how much of it makes entries and sorts them.
void sorting(const Case& c, double milliseconds_of_update) {
  using namespace ts::detail::cuda;
  const Call call(c.indices);
  const EntryMemory memory = entry_memory(call, kIndices);
  const auto entries = [&] {
    C10_CUDA_CHECK(lookup_entries(
        integers_of(c.indices),
        {0, c.rows(), c.rows()},
        /*padding=*/-1,
        memory.entries,
        call.report(),
        call.stream()));
  };
  const double made = milliseconds(entries);
  const double both = milliseconds([&] {
    entries();
    sorted_entries(call, memory, kIndices, c.rows());
  });
  std::printf(
      "| sorting in it, %s | ours | %.3f | | %.0f%% of the update | <= 20%% "
      "|\n",
      c.name.c_str(),
      both - made,
      100 * (both - made) / milliseconds_of_update);
}

// Bags' backward with plain gradient descent on the rows.
void updates(const Table& out, const Case& c) {
  const auto offsets = at::arange(kBags, gpu(at::kLong)).mul(kBagLength);
  const auto grad = at::randn({kBags, c.table.size(1)}, gpu(at::kFloat))
                        .to(c.table.scalar_type());
  const ts::detail::BagGradient bags{
      grad,
      {0, c.rows()},
      {c.indices, offsets},
      ts::detail::BagMode::kSum,
      std::nullopt};
  // A gradient for each entry; each row that has one read and written.
  const double ours = milliseconds(
      [&] { ts::detail::embedding_bag_step_(c.table, bags, 1e-9); });
  out.add(
      "bag backward + SGD, " + c.name,
      "ours",
      ours,
      c.row_bytes() * (kIndices + 2 * c.distinct),
      ">= 60%");
  sorting(c, ours);
  const auto plain = c.table.detach().requires_grad_();
  out.add(
      "bag backward + SGD, " + c.name,
      "torch, sparse gradient",
      milliseconds(
          [&] {
            plain.mutable_grad() = at::Tensor();
            std::get<0>(
                at::embedding_bag(plain, c.indices, offsets, false, 0, true))
                .backward(grad);
            const at::NoGradGuard no_grad;
            plain.add_(plain.grad(), -1e-9);
          },
          3),
      c.row_bytes() * (kIndices + 2 * c.distinct));
}

void routing(const Table& out, const Case& c) {
  const std::vector<int64_t> bounds{
      0, c.rows() / 4, c.rows() / 2, c.rows() / 4 * 3, c.rows()};
  out.add(
      "routing to 4 owners, " + c.name,
      "ours",
      milliseconds([&] { ts::detail::route_rows(c.indices, bounds); }),
      0);
  out.add(
      "routing to 4 owners, " + c.name,
      "torch's unique",
      milliseconds([&] { at::_unique2(c.indices, true, true); }),
      0);
}

// The host's time for an op on 4x4 floats, on one rank: of this process if a
// launcher started it (a World of one process), else of a simulated world.
void small_ops(at::DeviceType device) {
  const c10::InferenceMode inference;
  const auto plain = at::ones({4, 4}, at::TensorOptions(device));
  const auto mesh =
      ts::init_device_mesh(device == at::kCUDA ? "cuda" : "cpu", {1});
  const at::Tensor ours = ts::distribute_tensor(plain, mesh, {ts::Shard(0)});
  at::Tensor written = plain.clone();
  at::Tensor our_written = ours.clone();
  const std::vector<
      std::tuple<const char*, std::function<void()>, std::function<void()>>>
      ops{{"add", [&] { plain.add(plain); }, [&] { ours.add(ours); }},
          {"add_",
           [&] { written.add_(plain); },
           [&] { our_written.add_(ours); }},
          {"relu", [&] { plain.relu(); }, [&] { ours.relu(); }},
          {"view", [&] { plain.view({4, 4}); }, [&] { ours.view({4, 4}); }}};
  std::printf(
      "\n| 4x4 on %s, us | plain | ours | added | loop: plain | ours | added "
      "|\n"
      "|---|---|---|---|---|---|---|\n",
      c10::DeviceTypeName(device, true).c_str());
  for (const auto& [name, of_plain, of_ours] : ops) {
    const auto [plain_us, our_us] = host_microseconds(of_plain, of_ours);
    const auto [plain_loop, our_loop] = loop_microseconds(of_plain, of_ours);
    std::printf(
        "| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n",
        name,
        plain_us,
        our_us,
        our_us - plain_us,
        plain_loop,
        our_loop,
        our_loop - plain_loop);
  }
}

void small_ops() {
  const auto world = std::getenv("RANK") != nullptr
                         ? ts::World::from_environment()
                         : ts::World::simulate(1);
  small_ops(at::kCUDA);
  small_ops(at::kCPU);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "small") {
    small_ops();
    return 0;
  }
  const auto memory = at::empty({kFloats}, gpu(at::kFloat)).normal_();
  const double bytes = 4.0 * kFloats;
  double copy = 0;
  {
    const auto target = at::empty_like(memory);
    copy = 2 * bytes / milliseconds([&] { target.copy_(memory); }) * 1e3;
  }
  std::printf(
      "copy: %.0f GB/s\n\n"
      "| | | ms | GB/s | of a copy | goal |\n|---|---|---|---|---|---|\n",
      copy / 1e9);
  const Table out(copy);
  for (const bool zipf : {false, true}) {
    const Case c = make_case(memory, 128, at::kFloat, zipf);
    lookups(out, c, true);
    bags(out, c);
    gradients(out, c, false);
    gradients(out, c, true);
    updates(out, c);
    routing(out, c);
  }
  for (const int64_t width : {64, 256}) {
    const Case c = make_case(memory, width, at::kFloat, false);
    lookups(out, c, false);
    bags(out, c);
    updates(out, c);
  }
  // Half the memory; values may be anything but must be numbers.
  memory.view(at::kHalf).fill_(0.25);
  const Case half = make_case(memory, 128, at::kHalf, false);
  lookups(out, half, false);
  bags(out, half);
  updates(out, half);
  small_ops();
  return 0;
}
