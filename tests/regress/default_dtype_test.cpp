// The default dtype used to be left out of the key of cached plans: after
// `integers / 2`, then set_default_dtype(double), the same division claimed to
// be float while its shards were double.
#include <c10/core/DefaultDtype.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace default_dtype_test {

class DefaultDtype {
 public:
  explicit DefaultDtype(at::ScalarType dtype) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  }
  ~DefaultDtype() { c10::set_default_dtype(before_); }

 private:
  caffe2::TypeMeta before_ = c10::get_default_dtype();
};

TEST(DefaultDtype, ChangesResultsOfCachedPlans) {
  ts::testing::for_each_mesh([](const ts::DeviceMesh& mesh) {
    if (ts::testing::outside(mesh)) {
      return;
    }
    const auto plain = torch::arange(12).view({4, 3});
    const auto x = ts::distribute_tensor(
        plain, mesh, ts::Placements(mesh.ndim(), ts::Shard(0)));
    for (const auto dtype : {at::kFloat, at::kDouble, at::kFloat}) {
      const DefaultDtype scope(dtype);
      const std::vector<std::pair<at::Tensor, at::Tensor>> results{
          {x / 2, plain / 2},
          {x * 0.5, plain * 0.5},
          {x.sqrt(), plain.sqrt()},
          {x.lt(3).mul(1.5), plain.lt(3).mul(1.5)}};
      for (const auto& [actual, expected] : results) {
        EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
        for (const auto& shard : ts::DTensor(actual).shards()) {
          EXPECT_EQ(shard.scalar_type(), expected.scalar_type());
        }
        EXPECT_TRUE(ts::DTensor(actual).full_tensor().equal(expected));
      }
    }
  });
}

}  // namespace default_dtype_test
