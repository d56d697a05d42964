// Indexing by tensors: reading and writing where indices or masks say.
#include "testing/samples.h"

namespace tessera::testing {

namespace {

using List = std::vector<std::optional<TensorRecipe>>;

// `count` different ones of at least as many: of several values for one place
// it would not be specified which is kept.
TensorRecipe distinct(int64_t count) {
  return indices({count}, count).with(Values::Permutation);
}

void add_reads(Samples& samples) {
  const auto read = [&](const char* note, TensorRecipe self, List list) {
    samples.push_back(
        {"aten::index.Tensor",
         {std::move(self), optional_tensors(std::move(list))},
         note});
  };
  read("rows", t({5, 3}), {indices({4}, 5)});
  read("rows, by a matrix", t({5, 3}), {indices({4, 2}, 5)});
  read("columns", t({5, 3}), {std::nullopt, indices({4}, 3)});
  read("pairs", t({5, 3}), {indices({4}, 5), indices({4}, 3)});
  read("broadcast", t({5, 3}), {indices({4, 1}, 5), indices({2}, 3)});
  read(
      "not neighbours",
      t({5, 3, 4}),
      {indices({2}, 5), std::nullopt, indices({2}, 4)});
  read(
      "last two",
      t({5, 3, 4}),
      {std::nullopt, indices({2}, 3), indices({2}, 4)});
  read("mask", t({5, 3}), {bools({5, 3})});
  read("mask of rows", t({5, 3}), {bools({5})});
  read("mask of columns", t({5, 3}), {std::nullopt, bools({3})});
}

void add_writes(Samples& samples) {
  const auto write = [&](const char* note,
                         TensorRecipe self,
                         List list,
                         TensorRecipe values,
                         bool accumulate = false) {
    for (const char* op : {"aten::index_put", "aten::index_put_"}) {
      samples.push_back(
          {op, {self, optional_tensors(list), values, accumulate}, note});
    }
  };
  write("mask, a number", t({5, 3}), {bools({5, 3})}, t({}));
  write("mask, a number in a list", t({5, 3}), {bools({5, 3})}, t({1}));
  write("mask of rows, a number", t({5, 3}), {bools({5})}, t({}));
  write("mask of rows, a row", t({5, 3}), {bools({5})}, t({3}));
  write("mask, add a number", t({5, 3}), {bools({5, 3})}, t({}), true);
  write("mask of columns", t({5, 3}), {std::nullopt, bools({3})}, t({5, 1}));
  write("rows", t({5, 3}), {distinct(4)}, t({4, 3}));
  write("rows, one for all", t({5, 3}), {distinct(4)}, t({3}));
  write("rows, a number", t({5, 3}), {indices({4}, 5)}, t({}));
  write("columns", t({5, 3}), {std::nullopt, distinct(2)}, t({5, 2}));
  write("pairs", t({5, 4}), {distinct(4), distinct(4)}, t({4}));
  write(
      "not neighbours",
      t({5, 3, 4}),
      {distinct(4), std::nullopt, distinct(4)},
      t({4, 3}));
  write("add rows", t({5, 3}), {indices({4}, 5)}, t({4, 3}), true);
  write("add one to rows", t({5, 3}), {indices({4}, 5)}, t({3}), true);
  write(
      "add pairs", t({5, 3}), {indices({4}, 5), indices({4}, 3)}, t({4}), true);
  write(
      "add, broadcast",
      t({5, 3}),
      {indices({4, 1}, 5), indices({2}, 3)},
      t({4, 2}),
      true);
}

}  // namespace

void add_index_samples(Samples& samples) {
  add_reads(samples);
  add_writes(samples);
}

}  // namespace tessera::testing
