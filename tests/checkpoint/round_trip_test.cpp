// What is saved in one layout is loaded into any other, by any ranks.
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "testing/draw.h"
#include "testing/layouts.h"
#include "testing/run_directory.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace tessera {
namespace round_trip_test {

using testing::RunDirectory;
using testing::throws_saying;

at::Tensor numbers(c10::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return torch::randn(shape, at::kDouble).mul(100).to(dtype);
}

// The value of a distributed tensor; undefined on ranks outside.
at::Tensor whole(const at::Tensor& tensor) {
  const DTensor distributed(tensor);
  if (testing::outside(distributed.mesh())) return {};
  return distributed.full_tensor();
}

void expect_same(const at::Tensor& tensor, const at::Tensor& value) {
  const auto found = is_dtensor(tensor) ? whole(tensor) : tensor;
  if (!found.defined()) return;
  EXPECT_TRUE(torch::equal(found, value)) << found << "\n" << value;
}

// Shapes with empty shards, fewer rows than ranks, no dimensions, no elements.
const std::vector<std::vector<int64_t>>& shapes() {
  static const std::vector<std::vector<int64_t>> all{
      {}, {1}, {5}, {7, 3}, {0, 4}, {2, 0}, {4, 6, 5}, {3, 1, 2, 3}};
  return all;
}

TEST(RoundTrip, AnyLayoutIntoAnyOther) {
  testing::for_each_mesh([](const DeviceMesh& mesh) {
    const RunDirectory run;
    testing::Draw draw(mesh.size() + 10 * mesh.ndim());
    TensorMap saved;
    TensorMap loaded;
    TensorMap values;
    for (size_t i = 0; i < shapes().size(); ++i) {
      for (int trial = 0; trial < 3; ++trial) {
        const auto value = numbers(shapes()[i]);
        const auto name = c10::str("t", i, ".", trial);
        const auto place = [&](const at::Tensor& tensor) {
          return distribute_tensor(
              tensor, mesh, draw.layout(mesh.ndim(), tensor.dim()));
        };
        values[name] = value;
        saved[name] = place(value);
        loaded[name] = place(torch::zeros_like(value));
      }
    }
    const auto path = save(run.path(), saved, {.step = 3});
    EXPECT_EQ(path, run / "step_3");
    const auto info = load(path, loaded);
    EXPECT_EQ(info.step, 3);
    for (const auto& [name, value] : values) expect_same(loaded[name], value);
    const auto plain = load_plain(path);
    ASSERT_EQ(plain.size(), values.size());
    for (const auto& [name, value] : values) expect_same(plain.at(name), value);
  });
}

TEST(RoundTrip, EveryDtype) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const RunDirectory run;
    TensorMap saved;
    TensorMap loaded;
    TensorMap values;
    for (const auto dtype :
         {at::kFloat,
          at::kDouble,
          at::kHalf,
          at::kBFloat16,
          at::kLong,
          at::kInt,
          at::kShort,
          at::kChar,
          at::kByte,
          at::kBool,
          at::kComplexFloat,
          at::kComplexDouble}) {
      const auto name = std::string(c10::toString(dtype));
      const auto value = torch::randint(0, 100, {7, 5}).to(dtype);
      values[name] = value;
      saved[name] = distribute_tensor(value, mesh, {Shard(0)});
      loaded[name] =
          distribute_tensor(torch::zeros_like(value), mesh, {Shard(1)});
    }
    load(save(run.path(), saved), loaded);
    for (const auto& [name, value] : values) expect_same(loaded[name], value);
    for (const auto& [name, value] : load_plain(run / "step_0")) {
      EXPECT_EQ(value.scalar_type(), values[name].scalar_type());
      expect_same(value, values[name]);
    }
  });
}

TEST(RoundTrip, OtherDtypesAndStridesAreConverted) {
  testing::with_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const RunDirectory run;
    const auto value = torch::arange(35.0).view({5, 7});
    const auto path = save(
        run.path(),
        {{"x", distribute_tensor(value.t(), mesh, {Shard(0), Shard(1)})},
         {"plain", value.t()}});
    TensorMap into{
        {"x",
         distribute_tensor(
             torch::zeros({7, 5}, at::kBFloat16), mesh, {Shard(1), Shard(0)})},
        {"plain", torch::zeros({5, 7}, at::kDouble).t()}};
    load(path, into);
    expect_same(into["x"], value.t().to(at::kBFloat16));
    expect_same(into["plain"], value.t().to(at::kDouble));
  });
}

TEST(RoundTrip, PendingReductionsAreSavedAsTheirValue) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const RunDirectory run;
    const auto value = torch::arange(12.0).view({4, 3});
    const auto pending = testing::laid_out(value, mesh, {Partial()}, 1);
    save(run.path(), {{"x", pending}});
    expect_same(load_plain(run / "step_0").at("x"), value);
    throws_saying<c10::ValueError>("is a pending reduction", [&] {
      load(run / "step_0", {{"x", pending}});
    });
  });
}

// Larger than a chunk, so that pieces are read in part.
TEST(RoundTrip, LargeTensors) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const RunDirectory run;
    const auto value = numbers({3001, 701});  // 8 MiB
    const auto wide = numbers({3, 1'000'003});
    const auto path = save(
        run.path(),
        {{"rows", distribute_tensor(value, mesh, {Shard(0)})},
         {"columns", distribute_tensor(value, mesh, {Shard(1)})},
         {"all", distribute_tensor(value, mesh, {Replicate()})},
         {"wide", distribute_tensor(wide, mesh, {Shard(1)})}});
    for (const auto& placement : {Shard(0), Shard(1), Replicate()}) {
      TensorMap into;
      for (const auto* name : {"rows", "columns", "all"}) {
        into[name] = empty({3001, 701}, mesh, {placement});
      }
      into["wide"] = empty({3, 1'000'003}, mesh, {placement});
      load(path, into);
      for (const auto* name : {"rows", "columns", "all"}) {
        expect_same(into[name], value);
      }
      expect_same(into["wide"], wide);
    }
  });
}

// A replica is written once, and not always by the same rank.
TEST(RoundTrip, ReplicasAreSpread) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const RunDirectory run;
    TensorMap tensors;
    for (int i = 0; i < 8; ++i) {
      tensors[c10::str("small", i)] =
          distribute_tensor(numbers({1024}), mesh, {Replicate()});
    }
    tensors["large"] =
        distribute_tensor(numbers({8 << 20}), mesh, {Replicate()});
    save(run.path(), tensors);
    int64_t total = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const auto bytes = static_cast<int64_t>(std::filesystem::file_size(
          run / c10::str("step_0/data_000", rank, ".safetensors")));
      total += bytes;
      EXPECT_NEAR(bytes, 8 << 20, 4096 * 4) << rank;
    }
    EXPECT_LE(total, (32 << 20) + 8 * 4096 + 4 * 8192);
  });
}

// A number of /proc/self/<file>, in the unit that it has there.
int64_t process_number(const std::string& file, const std::string& name) {
  std::ifstream in("/proc/self/" + file);
  std::string word;
  while (in >> word) {
    int64_t value = 0;
    if (word == name + ":" && in >> value) return value;
  }
  return -1;
}

// Neither a byte nor a page more than its shards need.
TEST(RoundTrip, ReadsOnlyWhatItNeedsStraightIntoPlace) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const RunDirectory run;
    constexpr int64_t kRows = 1 << 16;
    constexpr int64_t kBytes = kRows * 256 * 4;  // 64 MiB
    save(run.path(), {{"table", full({kRows, 256}, 3, mesh, {Shard(0)})}});
    const auto into = full({kRows, 256}, 1, mesh, {Shard(0)});
    const auto own = kBytes / 4 * std::ssize(mesh.local_positions());
    std::ofstream("/proc/self/clear_refs") << 5;  // forget the peak
    const auto resident = process_number("status", "VmRSS");
    const auto read = process_number("io", "rchar");
    load(run / "step_0", {{"table", into}});
    EXPECT_LE(process_number("io", "rchar") - read, own + (1 << 18));
    EXPECT_LE(process_number("status", "VmHWM") - resident, 4 << 10);
    expect_same(into.narrow(1, 0, 1), torch::full({kRows, 1}, 3.0));
  });
}

// Into other columns every rank needs bytes of every page: it maps some blocks
// at a time, and never holds the file.
TEST(RoundTrip, OtherLayoutsNeedLittleMemory) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const RunDirectory run;
    constexpr int64_t kRows = 1 << 17;
    constexpr int64_t kWindow = 20 << 10;  // KiB, of one thread
    save(run.path(), {{"table", full({kRows, 256}, 3, mesh, {Shard(0)})}});
    const auto into = full({kRows, 256}, 1, mesh, {Shard(1)});
    std::ofstream("/proc/self/clear_refs") << 5;  // forget the peak
    const auto resident = process_number("status", "VmRSS");
    load(run / "step_0", {{"table", into}});
    EXPECT_LE(
        process_number("status", "VmHWM") - resident,
        kWindow * at::get_num_threads() + (8 << 10));
    expect_same(into.narrow(1, 100, 1), torch::full({kRows, 1}, 3.0));
  });
}

TEST(RoundTrip, AnotherNumberOfRanks) {
  if (testing::over_processes()) return;  // worlds of one test have one size
  const RunDirectory run;
  const auto value = numbers({11, 6});
  for (const int64_t saved_by : {1, 2, 3, 4, 7}) {
    {
      const auto world = World::simulate(saved_by);
      const auto mesh = init_device_mesh("cpu", {saved_by});
      save(run.path(), {{"x", distribute_tensor(value, mesh, {Shard(0)})}});
    }
    for (const int64_t loaded_by : {1, 2, 4, 5}) {
      const auto world = World::simulate(loaded_by);
      const auto mesh = init_device_mesh("cpu", {loaded_by});
      const auto x = zeros({11, 6}, mesh, {Shard(1)});
      const auto info = load(run / "step_0", {{"x", x}});
      EXPECT_EQ(info.ranks, saved_by);
      expect_same(x, value);
    }
    // Without a world.
    const auto x = torch::zeros({11, 6});
    load(run / "step_0", {{"x", x}});
    expect_same(x, value);
  }
}

// The file that memory of this process is a view of; "" if of none.
std::string file_behind(const void* memory) {
  std::ifstream in("/proc/self/maps");
  for (std::string line; std::getline(in, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    const auto at = reinterpret_cast<uintptr_t>(memory);
    if (at < begin || at >= end) continue;
    const auto slash = line.find('/');
    return slash == std::string::npos ? "" : line.substr(slash);
  }
  return "";
}

TEST(RoundTrip, MappedTensors) {
  const RunDirectory run;
  testing::with_mesh({4}, [&](const DeviceMesh& mesh) {
    const auto table = numbers({4096, 16});
    const auto uneven = numbers({13, 5});
    save(
        run.path(),
        {{"table", distribute_tensor(table, mesh, {Shard(0)})},
         {"uneven", distribute_tensor(uneven, mesh, {Shard(0)})},
         {"columns", distribute_tensor(table, mesh, {Shard(1)})},
         {"plain", uneven}});
    auto mapped = load_plain(run / "step_0", {.mmap = true});
    expect_same(mapped.at("table"), table);
    expect_same(mapped.at("uneven"), uneven);
    expect_same(mapped.at("columns"), table);
    expect_same(mapped.at("plain"), uneven);
    // Rows that fill pages stay in the files of all four ranks.
    const auto* rows =
        static_cast<const char*>(mapped.at("table").const_data_ptr());
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(
          file_behind(rows + rank * (mapped.at("table").nbytes() / 4)),
          run / c10::str("step_0/data_000", rank, ".safetensors"));
    }
    EXPECT_EQ(file_behind(mapped.at("columns").const_data_ptr()), "");
    // A write is seen only here.
    mapped.at("table").zero_();
    expect_same(
        load_plain(run / "step_0", {.names = {"table"}}).at("table"), table);
  });
}

TEST(RoundTrip, ValuesAndStep) {
  auto& world = testing::test_world();
  const RunDirectory run;
  save(
      run.path(),
      TensorMap{},
      {.step = 12,
       .values = {{"position", "34"}, {"text", "ein \"Zitat\"\n\u00e9"}}});
  const auto info = checkpoint_info(run / "step_12");
  EXPECT_EQ(info.step, 12);
  EXPECT_EQ(info.ranks, world.size());
  EXPECT_EQ(info.values.at("position"), "34");
  EXPECT_EQ(info.values.at("text"), "ein \"Zitat\"\n\u00e9");
}

TEST(RoundTrip, Generators) {
  testing::test_world();
  const RunDirectory run;
  torch::manual_seed(5);
  torch::randn({3});
  save(run.path(), TensorMap{});
  const auto expected = torch::randn({5});
  load(run / "step_0", TensorMap{}, {.generators = true});
  EXPECT_TRUE(torch::equal(torch::randn({5}), expected));
}

TEST(RoundTrip, Mistakes) {
  testing::with_mesh({4}, [](const DeviceMesh& mesh) {
    const RunDirectory run;
    const auto x = zeros({4, 3}, mesh, {Shard(0)});
    const auto path = save(run.path(), {{"x", x}});
    throws_saying<c10::ValueError>(
        "does not hold 'y'", [&] { load(path, {{"y", x}}); });
    throws_saying<c10::ValueError>("'x' has the shape [3, 4]", [&] {
      load(path, {{"x", zeros({3, 4}, mesh, {Shard(0)})}});
    });
    throws_saying<c10::ValueError>(
        "there is nothing at", [&] { load(run / "nothing", {{"x", x}}); });
    throws_saying<c10::ValueError>(
        "load one of its checkpoints", [&] { load(run.path(), {{"x", x}}); });
    throws_saying<c10::ValueError>(
        "step -1", [&] { save(run.path(), {{"x", x}}, {.step = -1}); });
    throws_saying<c10::ValueError>(
        "cannot be called ''", [&] { save(run.path(), {{"", x}}); });
    throws_saying<c10::NotImplementedError>("layout Sparse", [&] {
      save(run.path(), {{"s", torch::zeros({3, 3}).to_sparse()}});
    });
    throws_saying<c10::ValueError>(
        "undefined", [&] { save(run.path(), {{"u", at::Tensor()}}); });
  });
}

}  // namespace round_trip_test
}  // namespace tessera
