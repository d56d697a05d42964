#include "comm/reduce.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "kernels/reduce/reduce_terms.h"

namespace tessera::detail {

namespace {

using Terms = c10::SmallVector<at::Tensor, 8>;

// Elements of one block: the accumulator stays in the nearest caches while the
// terms stream past, so that each is read from memory once.
constexpr int64_t kBlock = 16384;

// out = out `op` term, or out = first `op` term at the start.
void accumulate(
    at::Tensor& out,
    const at::Tensor& first,
    const at::Tensor& term,
    ReduceOp op) {
  if (out.scalar_type() == c10::ScalarType::Bool) {
    // A sum is `or`, a product is `and`.
    op = op == ReduceOp::Product ? ReduceOp::Min
         : op == ReduceOp::Min   ? op
                                 : ReduceOp::Max;
  }
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Avg:
      at::add_out(out, first, term);
      return;
    case ReduceOp::Product:
      at::mul_out(out, first, term);
      return;
    case ReduceOp::Min:
      at::minimum_out(out, first, term);
      return;
    case ReduceOp::Max:
      at::maximum_out(out, first, term);
      return;
  }
}

void reduce_block(
    at::Tensor out, c10::ArrayRef<at::Tensor> terms, ReduceOp op) {
  const auto n = static_cast<int64_t>(terms.size());
  const bool wide = c10::isReducedFloatingType(out.scalar_type()) &&
                    op != ReduceOp::Min && op != ReduceOp::Max && n > 1;
  at::Tensor total = wide ? terms[0].to(c10::ScalarType::Float) : out;
  if (n == 1) {
    total.copy_(terms[0]);
  } else if (wide) {
    for (const auto& term : terms.slice(1)) accumulate(total, total, term, op);
  } else {
    accumulate(total, terms[0], terms[1], op);
    for (const auto& term : terms.slice(2)) accumulate(total, total, term, op);
  }
  if (op == ReduceOp::Avg) {
    // By a tensor: ATen's CUDA kernel multiplies with the inverse of a number.
    total.div_(at::scalar_tensor(n, total.options()));
  }
  if (wide) out.copy_(total);
}

}  // namespace

void check_reducible(ReduceOp op, c10::ScalarType dtype, const char* caller) {
  const bool integral = c10::isIntegralType(dtype, /*includeBool=*/true);
  TORCH_CHECK_VALUE(
      op != ReduceOp::Avg || !integral,
      "[",
      caller,
      "] the average of ",
      dtype,
      " is no ",
      dtype,
      "; reduce by sum, or convert to a floating-point type first");
  const bool ordering = op == ReduceOp::Min || op == ReduceOp::Max;
  TORCH_CHECK_VALUE(
      !ordering || !c10::isComplexType(dtype),
      "[",
      caller,
      "] ",
      dtype,
      " has no order, so it cannot be reduced by ",
      to_string(op),
      "; reduce its real or absolute value");
}

void reduce_into(
    const at::Tensor& out, c10::ArrayRef<at::Tensor> terms, ReduceOp op) {
  if (out.is_cuda() && reduce_terms_cuda(out, terms, op)) return;
  const int64_t numel = out.numel();
  const bool blocks =
      numel > kBlock && out.is_cpu() &&
      std::all_of(terms.begin(), terms.end(), [](const at::Tensor& t) {
        return t.is_contiguous() && !t.is_conj() && !t.is_neg();
      });
  if (!blocks) {
    reduce_block(out, terms, op);
    return;
  }
  const at::Tensor flat_out = out.view({-1});
  Terms flat;
  for (const auto& term : terms) flat.push_back(term.view({-1}));
  const int64_t count = (numel + kBlock - 1) / kBlock;
  at::parallel_for(0, count, 4, [&](int64_t begin, int64_t end) {
    // The guard is per thread, and these may be the pool's.
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Terms block(flat.size());
    for (int64_t b = begin; b < end; ++b) {
      const int64_t start = b * kBlock;
      const int64_t length = std::min(kBlock, numel - start);
      for (size_t i = 0; i < flat.size(); ++i) {
        block[i] = flat[i].narrow(0, start, length);
      }
      reduce_block(flat_out.narrow(0, start, length), block, op);
    }
  });
}

void reduce_into_each(
    c10::ArrayRef<at::Tensor> outs,
    c10::ArrayRef<at::Tensor> terms,
    ReduceOp op) {
  if (outs[0].is_cuda() && reduce_terms_cuda(outs, terms, op)) return;
  reduce_into(outs[0], terms, op);
  for (const auto& out : outs.slice(1)) out.copy_(outs[0]);
}

}  // namespace tessera::detail
