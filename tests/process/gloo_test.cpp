// Gloo's groups for collectives of the user's own. Run as processes.
#include "comm/process/gloo.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <filesystem>

#include "testing/processes.h"
#include "testing/run_directory.h"

namespace tessera::testing {
namespace gloo_test {

using Gloo = FourProcesses;

// Whoever is connected first used to break the connections of the others.
TEST_F(Gloo, AGroupMayEndAsSoonAsItIsThere) {
  const RunDirectory directory;
  directory.once([&] { std::filesystem::create_directory(directory.path()); });
  const auto store =
      c10::make_intrusive<c10d::FileStore>(directory / "store", 4);
  for (int round = 0; round < 20; ++round) {
    detail::GroupRequest request;
    request.store =
        c10::make_intrusive<c10d::PrefixStore>(std::to_string(round), store);
    request.ranks = {0, 1, 2, 3};
    request.coordinate = test_world().rank();
    request.host = detail::Host::of_this_process();
    request.timeout = std::chrono::seconds(30);
    EXPECT_EQ(detail::make_gloo(request)->getSize(), 4) << "round " << round;
  }
}

}  // namespace gloo_test
}  // namespace tessera::testing
