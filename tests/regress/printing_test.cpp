// std::cout << tensor of a distributed at::Tensor raised.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "tessera/tessera.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace printing_test {

std::string printed(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor;
  return out.str();
}

TEST(Printing, DistributedTensorsPrintTheirLayoutAndShards) {
  ASSERT_TRUE(ts::testing::with_mesh({4}, [](const ts::DeviceMesh& mesh) {
    const auto x = ts::distribute_tensor(
        torch::arange(6, at::kFloat), mesh, {ts::Shard(0)});
    const at::Tensor y = x + 1;
    std::ostringstream as_handle;
    as_handle << ts::DTensor(y);
    EXPECT_EQ(printed(y), as_handle.str());
    EXPECT_NE(printed(y).find("S(0)"), std::string::npos);
    EXPECT_NE(printed(y.to(at::kBFloat16)).find("rank"), std::string::npos);
  }));
}

TEST(Printing, PlainTensorsPrintAsEver) {
  EXPECT_EQ(printed(torch::ones({2})), " 1\n 1\n[ CPUFloatType{2} ]");
  EXPECT_EQ(printed(at::Tensor()), "[ Tensor (undefined) ]");
}

}  // namespace printing_test
