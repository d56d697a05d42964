// Bags of rows, by every mode.
#include "testing/samples.h"

namespace tessera::testing {

namespace {

struct Mode {
  int number;
  const char* name;
};
constexpr Mode kModes[] = {{0, "sum"}, {1, "mean"}, {2, "max"}};

}  // namespace

void add_bag_samples(Samples& samples) {
  const auto table = t({7, 5});
  const auto entries = indices({9}, 7);
  const auto starts = offsets(4, 9);
  for (const Mode& mode : kModes) {
    samples.push_back(
        {"tessera::bag",
         {table, entries, starts, none(), mode.number},
         mode.name});
    samples.push_back(
        {"tessera::bag",
         {table, entries, starts, none(), mode.number, false, 2},
         std::string(mode.name) + ", padding"});
  }
  samples.push_back(
      {"tessera::bag", {table, entries, starts, t({9}), 0}, "weighted"});
  for (const int mode : {0, 1}) {
    samples.push_back(
        {"tessera::bag_backward",
         {t({4, 5}), entries, starts, table, none(), none(), mode},
         kModes[mode].name,
         true});
  }
  samples.push_back(
      {"tessera::bag_backward",
       {t({4, 5}), entries, starts, table, t({9}), none(), 0},
       "weighted",
       true});
  samples.push_back(
      {"tessera::bag_weights_backward",
       {t({4, 5}), entries, starts, table},
       "",
       true});
}

}  // namespace tessera::testing
