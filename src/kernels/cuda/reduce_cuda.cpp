#include <algorithm>

#include "kernels/cuda/call.h"
#include "kernels/cuda/reduce.h"
#include "kernels/reduce/reduce_terms.h"

namespace tessera::detail {

namespace {

cuda::Reduction reduction_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::Avg:
      return cuda::Reduction::kAverage;
    case ReduceOp::Product:
      return cuda::Reduction::kProduct;
    case ReduceOp::Min:
      return cuda::Reduction::kMin;
    case ReduceOp::Max:
      return cuda::Reduction::kMax;
    case ReduceOp::Sum:
      break;
  }
  return cuda::Reduction::kSum;
}

}  // namespace

bool reduce_terms_cuda(
    c10::ArrayRef<at::Tensor> outs,
    c10::ArrayRef<at::Tensor> terms,
    ReduceOp op) {
  const auto dtype = cuda::scalar_of(outs[0].scalar_type());
  const auto fits = [](c10::ArrayRef<at::Tensor> tensors) {
    return tensors.size() <= cuda::kMostTerms &&
           std::all_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
             return tensor.is_contiguous() && !tensor.is_neg();
           });
  };
  if (!dtype.has_value() || !fits(outs) || !fits(terms)) {
    return false;
  }
  if (outs[0].numel() == 0) {
    return true;
  }
  cuda::Terms all{};
  for (const auto& term : terms) {
    all.terms[all.term_count++] = term.const_data_ptr();
  }
  for (const auto& out : outs) {
    all.outs[all.out_count++] = out.mutable_data_ptr();
  }
  all.count = outs[0].numel();
  const cuda::Call call(outs[0]);
  C10_CUDA_CHECK(
      cuda::reduce_terms(all, *dtype, reduction_of(op), call.stream()));
  return true;
}

}  // namespace tessera::detail
