#include "kernels/route/bag_route.h"

#include <limits>

#include "kernels/kernels_for.h"

namespace tessera::detail {

BagRoute route_bags(const BagIndices& bags, const BagOwners& owners) {
  return kernels_for<BagRouteKernels>(bags.indices).route(bags, owners);
}

AskedBags unpack_requests(const BagRequestParts& parts, int64_t absent) {
  return kernels_for<BagRouteKernels>(parts.requests).unpack(parts, absent);
}

void add_replies_(
    const at::Tensor& sums, const BagRoute& route, const at::Tensor& replies) {
  kernels_for<BagRouteKernels>(sums).add(sums, route, replies);
}

at::Tensor argmax_places(const BagRoute& route, const at::Tensor& argmax) {
  return kernels_for<BagRouteKernels>(argmax).places(route, argmax);
}

int64_t no_argmax(at::ScalarType dtype) {
  return dtype == at::kByte ? std::numeric_limits<uint8_t>::max()
                            : std::numeric_limits<int32_t>::max();
}

at::ScalarType index_dtype(int64_t rows) {
  return rows <= std::numeric_limits<int32_t>::max() ? at::kInt : at::kLong;
}

}  // namespace tessera::detail
