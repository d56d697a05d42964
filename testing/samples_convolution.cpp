// Convolutions of every dimension, transposed and by group.
#include "testing/samples.h"

namespace tessera::testing {

void add_convolution_samples(Samples& samples) {
  const char* op = "aten::convolution";
  const auto one = dims({1});
  const auto zero = dims({0});
  samples.push_back(
      {op,
       {t({5, 4, 6}), t({3, 4, 3}), t({3}), one, one, one, false, zero, 1},
       "1-d"});
  samples.push_back(
      {op,
       {t({4, 4, 5, 5}),
        t({6, 4, 3, 3}),
        t({6}),
        dims({2, 1}),
        dims({1, 0}),
        dims({1, 2}),
        false,
        dims({0, 0}),
        1},
       "2-d"});
  samples.push_back(
      {op,
       {t({4, 4, 3, 3}),
        t({4, 6, 2, 2}),
        t({6}),
        dims({2, 2}),
        dims({0, 0}),
        dims({1, 1}),
        true,
        dims({1, 1}),
        1},
       "transposed"});
  samples.push_back(
      {op,
       {t({3, 4, 5}), t({8, 1, 3}), t({8}), one, zero, one, false, zero, 4},
       "depthwise"});
  samples.push_back(
      {op,
       {t({3, 4, 5}), t({6, 2, 3}), t({6}), one, zero, one, false, zero, 2},
       "groups"});
  samples.push_back(
      {op,
       {t({3, 8, 5}), t({12, 2, 3}), t({12}), one, one, one, false, zero, 4},
       "four groups"});
  // Two ranks have as many channels, but no whole groups.
  samples.push_back(
      {op,
       {t({3, 6, 5}), t({6, 2, 3}), t({6}), one, zero, one, false, zero, 3},
       "three groups"});
  samples.push_back(
      {op,
       {t({3, 8, 3, 3}),
        t({8, 3, 2, 2}),
        t({12}),
        dims({2, 2}),
        dims({0, 1}),
        dims({1, 1}),
        true,
        dims({1, 0}),
        4},
       "transposed, groups"});
  samples.push_back(
      {op,
       {t({2, 4, 3, 3, 3}),
        t({8, 1, 2, 2, 2}),
        none(),
        dims({1, 1, 1}),
        dims({0, 0, 0}),
        dims({1, 1, 1}),
        false,
        dims({0, 0, 0}),
        4},
       "3-d, groups, no bias"});
  const auto add_backward = [&](const char* name,
                                const SampleArg& grad,
                                const SampleArg& input,
                                const SampleArg& weight,
                                int64_t bias,
                                const SampleArg& padding,
                                bool transposed,
                                int groups) {
    samples.push_back(
        {"aten::convolution_backward",
         {grad,
          input,
          weight,
          dims({bias}),
          one,
          padding,
          one,
          transposed,
          zero,
          groups,
          c10::IValue(c10::List<bool>({true, true, true}))},
         name,
         true});
  };
  add_backward("", t({5, 3, 6}), t({5, 4, 6}), t({3, 4, 3}), 3, one, false, 1);
  add_backward(
      "groups", t({3, 12, 5}), t({3, 8, 5}), t({12, 2, 3}), 12, one, false, 4);
  add_backward(
      "transposed, groups",
      t({3, 12, 7}),
      t({3, 8, 5}),
      t({8, 3, 3}),
      12,
      zero,
      true,
      4);
}

}  // namespace tessera::testing
