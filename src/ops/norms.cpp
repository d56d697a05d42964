// Vector norms over the whole tensor, and of many tensors at once, as
// reductions of elementwise functions.
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "dispatch/run_by_rule.h"
#include "dispatch/tensor.h"
#include "ops/all_ops.h"
#include "ops/reduced_dims.h"

namespace tessera::detail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What the norm of `values`, whose dtype accumulates, is the root of; complex
// ones count by their magnitude.
at::Tensor powers_of(
    const at::Tensor& values, double ord, at::IntArrayRef dims, bool keepdim) {
  const auto real = c10::toRealValueType(values.scalar_type());
  if (ord == 0) {
    return at::sum(at::ne(values, 0), dims, keepdim, real);
  }
  if (ord == 2 && !values.is_complex()) {
    return at::sum(at::mul(values, values), dims, keepdim);
  }
  const auto magnitudes = at::abs(values);
  if (ord == kInfinity) {
    return at::amax(magnitudes, dims, keepdim);
  }
  if (ord == -kInfinity) {
    return at::amin(magnitudes, dims, keepdim);
  }
  if (ord == 1) {
    return at::sum(magnitudes, dims, keepdim);
  }
  if (ord == 2) {
    return at::sum(at::mul(magnitudes, magnitudes), dims, keepdim);
  }
  return at::sum(at::pow(magnitudes, ord), dims, keepdim);
}

at::Tensor root_of(const at::Tensor& powers, double ord) {
  if (ord == 0 || ord == 1 || std::isinf(ord)) {
    return powers;
  }
  return ord == 2 ? at::sqrt(powers) : at::pow(powers, 1.0 / ord);
}

// The order to take. One value is its own norm: its square may be infinite, or
// 0.
double order_for(const at::Tensor& values, at::IntArrayRef dims, double ord) {
  return ord != 0 && reduced_count(values, dims) == 1 ? 1 : ord;
}

at::Tensor norm_of(
    const at::Tensor& values, double ord, at::IntArrayRef dims, bool keepdim) {
  const double as = order_for(values, dims, ord);
  return root_of(powers_of(values, as, dims, keepdim), as);
}

void check_norm(at::ScalarType own, at::ScalarType in) {
  TORCH_CHECK(
      at::isFloatingType(own) || at::isComplexType(own),
      "[linalg_vector_norm] expected a floating point or complex input, but "
      "got ",
      own,
      "; convert it first");
  TORCH_CHECK(
      c10::promoteTypes(own, in) == in,
      "[linalg_vector_norm] expected a dtype that holds every value of the "
      "input's, which is ",
      own,
      ", but got ",
      in);
  TORCH_CHECK(
      at::isComplexType(own) == at::isComplexType(in),
      "[linalg_vector_norm] expected a dtype as real or complex as the input, "
      "which is ",
      own,
      ", but got ",
      in);
}

// Of no elements there is no smallest or largest, nor a negative power.
void check_identity(
    const at::Tensor& self, double ord, at::IntArrayRef dims, bool listed) {
  if (self.numel() != 0 || !(ord < 0 || ord == kInfinity)) {
    return;
  }
  TORCH_CHECK(
      listed,
      "linalg.vector_norm cannot compute the ",
      ord,
      " norm on an empty tensor because the operation does not have an "
      "identity");
  for (const int64_t dim : dims) {
    TORCH_CHECK(
        self.size(dim) != 0,
        "linalg.vector_norm cannot compute the ",
        ord,
        " norm on the dimension ",
        dim,
        " because this dimension is empty and the operation does not have an "
        "identity");
  }
}

at::Tensor vector_norm(
    const at::Tensor& self,
    const at::Scalar& ord,
    at::OptionalIntArrayRef dim,
    bool keepdim,
    std::optional<at::ScalarType> dtype) {
  const auto own = self.scalar_type();
  const auto in = dtype.value_or(own);
  check_norm(own, in);
  const auto dims = reduced_dims(self, dim);
  check_identity(self, ord.toDouble(), dims, dim.has_value() && !dim->empty());
  const auto norm =
      norm_of(self.to(accumulate_dtype(in)), ord.toDouble(), dims, keepdim);
  return norm.to(c10::toRealValueType(in));
}

at::Tensor norm_dim_dtype(
    const at::Tensor& self,
    const std::optional<at::Scalar>& p,
    at::IntArrayRef dim,
    bool keepdim,
    at::ScalarType dtype) {
  return vector_norm(self, p.value_or(2), dim, keepdim, dtype);
}

at::Tensor norm_dim(
    const at::Tensor& self,
    const std::optional<at::Scalar>& p,
    at::IntArrayRef dim,
    bool keepdim) {
  return vector_norm(self, p.value_or(2), dim, keepdim, std::nullopt);
}

at::Tensor norm_dtype(
    const at::Tensor& self,
    const std::optional<at::Scalar>& p,
    at::ScalarType dtype) {
  return norm_dim_dtype(self, p, {}, /*keepdim=*/false, dtype);
}

at::Tensor norm(const at::Tensor& self, const at::Scalar& p) {
  return norm_dim(self, p, {}, /*keepdim=*/false);
}

at::Tensor dist(
    const at::Tensor& self, const at::Tensor& other, const at::Scalar& p) {
  return detail::norm(at::sub(self, other), p);
}

// The norms of many tensors, what they have in common with one another reduced
// together: gradients are clipped by one all_reduce for all that are sharded
// alike.
class ManyNorms {
 public:
  ManyNorms(double ord, std::optional<at::ScalarType> dtype)
      : ord_(ord), dtype_(dtype) {}

  void add(const at::Tensor& tensor) {
    const size_t index = norms_.size();
    const auto in = dtype_.value_or(tensor.scalar_type());
    if (!is_dtensor(tensor) || tensor.layout() != at::kStrided) {
      norms_.push_back(at::linalg_vector_norm(
          tensor, ord_, at::OptionalIntArrayRef(), /*keepdim=*/false, dtype_));
      return;
    }
    check_norm(tensor.scalar_type(), in);
    const auto values = tensor.to(accumulate_dtype(in));
    const auto dims = reduced_dims(values, std::nullopt);
    const double as = order_for(values, dims, ord_);
    const auto powers = powers_of(values, as, dims, /*keepdim=*/false);
    norms_.push_back(powers);
    dtypes_.resize(norms_.size());
    dtypes_[index] = c10::toRealValueType(in);
    group_of(distributed_meta(powers).spec).push_back({index, as});
  }

  std::vector<at::Tensor> take() {
    for (const auto& [spec, members] : groups_) {
      std::vector<at::Tensor> powers;
      for (const auto& member : members) {
        powers.push_back(norms_[member.index]);
      }
      const auto reduced =
          reduced_for(at::stack(powers), "aten::_foreach_norm");
      for (size_t i = 0; i < members.size(); ++i) {
        const auto& [index, as] = members[i];
        norms_[index] =
            root_of(reduced.select(0, static_cast<int64_t>(i)).clone(), as)
                .to(dtypes_[index]);
      }
    }
    return std::move(norms_);
  }

 private:
  struct Member {
    size_t index;
    double as;
  };

  std::vector<Member>& group_of(const SpecPtr& spec) {
    for (auto& [known, members] : groups_) {
      if (known == spec) {
        return members;
      }
    }
    return groups_.emplace_back(spec, std::vector<Member>()).second;
  }

  const double ord_;
  const std::optional<at::ScalarType> dtype_;
  std::vector<at::Tensor> norms_;
  std::vector<at::ScalarType> dtypes_;
  // In the order of their first members: the same on every rank.
  std::vector<std::pair<SpecPtr, std::vector<Member>>> groups_;
};

std::vector<at::Tensor> foreach_norm(
    at::TensorList self,
    const at::Scalar& ord,
    std::optional<at::ScalarType> dtype) {
  ManyNorms norms(ord.toDouble(), dtype);
  for (const auto& tensor : self) {
    norms.add(tensor);
  }
  return norms.take();
}

}  // namespace

void register_norms(OpRegistry& ops) {
  ops.composed("linalg_vector_norm", &vector_norm);
  ops.composed("norm.Scalar", &norm);
  ops.composed("norm.ScalarOpt_dtype", &norm_dtype);
  ops.composed("norm.ScalarOpt_dim", &norm_dim);
  ops.composed("norm.ScalarOpt_dim_dtype", &norm_dim_dtype);
  ops.composed("dist", &dist);
  ops.composed("_foreach_norm.Scalar", &foreach_norm);
}

}  // namespace tessera::detail
