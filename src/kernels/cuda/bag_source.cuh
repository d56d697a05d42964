// What an entry of a bag brings to its row's gradient: see runs.cuh.
#pragma once

#include "kernels/cuda/bag_gradient.h"
#include "kernels/cuda/lanes.cuh"

namespace tessera::detail::cuda {

// The gradients of the bags.
template <typename T>
struct BagGradients {
  const T* data;
  int64_t width;

  explicit BagGradients(const BagTerms& terms)
      : data(static_cast<const T*>(terms.grad)), width(terms.width) {}

  template <int kStep>
  __device__ Raw<T, kStep> fetch(uint32_t bag, int column) const {
    return cuda::fetch<kStep>(data + bag * width + column);
  }
};

// The gradient of the bag itself; entries are named by their bags.
template <typename T>
struct SumSource {
  BagGradients<T> grads;

  explicit SumSource(const BagTerms& terms) : grads(terms) {}

  template <int kStep>
  __device__ Raw<T, kStep> fetch(uint32_t bag, int column) const {
    return grads.template fetch<kStep>(bag, column);
  }

  template <int kStep, typename S>
  __device__ void widen(const Raw<T, kStep>& raw, S (&terms)[kStep]) const {
    cuda::widen(raw, terms);
  }
};

template <typename T, int kStep>
struct ScaledGradient {
  Raw<T, kStep> grad;
  Sum<T> scale;
};

// Divided by the bag's count, entries being named by their bags; or times the
// entry's weight.
template <typename T, bool kMean>
struct ScaledSource {
  BagGradients<T> grads;
  const int64_t* counts;
  const int32_t* bags;
  const T* weights;

  explicit ScaledSource(const BagTerms& terms)
      : grads(terms),
        counts(terms.counts),
        bags(terms.bags),
        weights(static_cast<const T*>(terms.weights)) {}

  template <int kStep>
  __device__ ScaledGradient<T, kStep> fetch(uint32_t entry, int column) const {
    if constexpr (kMean) {
      const int64_t count = counts[entry];
      return {
          grads.template fetch<kStep>(entry, column),
          static_cast<Sum<T>>(count > 0 ? count : 1)};
    } else {
      return {
          grads.template fetch<kStep>(bags[entry], column),
          widened(weights[entry])};
    }
  }

  template <int kStep, typename S>
  __device__ void widen(
      const ScaledGradient<T, kStep>& fetched, S (&terms)[kStep]) const {
    cuda::widen(fetched.grad, terms);
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      terms[k] = kMean ? terms[k] / fetched.scale : terms[k] * fetched.scale;
    }
  }
};

// Only where the entry has the bag's maximum.
template <typename T>
struct MaxSource {
  BagGradients<T> grads;
  const int32_t* bags;
  const int32_t* argmax;

  explicit MaxSource(const BagTerms& terms)
      : grads(terms), bags(terms.bags), argmax(terms.argmax) {}

  template <int kStep>
  struct Fetched {
    Raw<T, kStep> grad;
    int32_t argmax[kStep];
    int32_t place;
  };

  template <int kStep>
  __device__ Fetched<kStep> fetch(uint32_t place, int column) const {
    const int64_t bag = bags[place];
    Fetched<kStep> fetched;
    fetched.grad = grads.template fetch<kStep>(bag, column);
    fetched.place = static_cast<int32_t>(place);
    const int32_t* const from = argmax + bag * grads.width + column;
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      fetched.argmax[k] = from[k];
    }
    return fetched;
  }

  template <int kStep, typename S>
  __device__ void widen(
      const Fetched<kStep>& fetched, S (&terms)[kStep]) const {
    cuda::widen(fetched.grad, terms);
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      if (fetched.argmax[k] != fetched.place) {
        terms[k] = 0;
      }
    }
  }
};

// Calls f(source) with what `terms` asks for.
template <typename T, class F>
cudaError_t with_source(const BagTerms& terms, F&& f) {
  return terms.argmax != nullptr    ? f(MaxSource<T>(terms))
         : terms.weights != nullptr ? f(ScaledSource<T, false>(terms))
         : terms.counts != nullptr  ? f(ScaledSource<T, true>(terms))
                                    : f(SumSource<T>(terms));
}

}  // namespace tessera::detail::cuda
