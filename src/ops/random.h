// Random numbers in distributed tensors: the ops that fill a tensor, from which
// the others are composed. See random_stream.h for where they come from.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::detail {

using OptionalGenerator = std::optional<at::Generator>;

// Whether a random op fills tensors of integers and bools.
enum class Integers : uint8_t { kRefused, kTaken };

// A plain tensor of the dtype of `self`, on which ATen checks the arguments of
// an op and words the errors. It has no elements, but for one where the dtype
// may be refused, which ATen does only where there is something to fill.
at::Tensor probe_of(const at::Tensor& self, Integers integers);

// What a probe is filled from, so that nobody's numbers are used up.
const at::Generator& probe_generator();

// Each fills `self` and returns it. Arguments are checked, and the errors
// worded, as ATen does. Throw c10::Error for a pending reduction, whose terms
// nobody can draw. Without a generator they draw from torch's default one.
// Do not communicate.
at::Tensor& uniform_(
    at::Tensor& self, double from, double to, OptionalGenerator generator);
at::Tensor& normal_(
    at::Tensor& self, double mean, double std, OptionalGenerator generator);
at::Tensor& exponential_(
    at::Tensor& self, double lambda, OptionalGenerator generator);
at::Tensor& bernoulli_(at::Tensor& self, double p, OptionalGenerator generator);
// Integers on [from, to); up to what the dtype holds exactly without `to`.
at::Tensor& random_from_to_(
    at::Tensor& self,
    int64_t from,
    std::optional<int64_t> to,
    OptionalGenerator generator);

}  // namespace tessera::detail
