// Reading the environments of launchers: a table, no processes.
#include "comm/process/environment.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace tessera::detail {
namespace environment_test {

using Environment = std::map<std::string, std::string>;

std::optional<Launch> read(const Environment& environment) {
  return read_environment(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = environment.find(name);
        if (found == environment.end()) return std::nullopt;
        return found->second;
      },
      /*parent=*/"process 4711");
}

struct Case {
  const char* name;
  Environment environment;
  int64_t rank;
  int64_t size;
  std::string address;
  // 0 where any port of ours will do.
  uint16_t port;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"torchrun",
       {{"RANK", "2"},
        {"WORLD_SIZE", "4"},
        {"MASTER_ADDR", "10.0.0.7"},
        {"MASTER_PORT", "29500"},
        {"LOCAL_WORLD_SIZE", "2"}},
       2,
       4,
       "10.0.0.7",
       29500},
      {"torchrun, one machine by another name",
       {{"RANK", "0"},
        {"WORLD_SIZE", "4"},
        {"MASTER_ADDR", "box"},
        {"MASTER_PORT", "1234"},
        {"LOCAL_WORLD_SIZE", "4"}},
       0,
       4,
       "box",
       1234},
      {"torchrun wins over the mpirun or Slurm that started it",
       {{"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "localhost"},
        {"MASTER_PORT", "1"},
        {"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "1"},
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "1"}},
       1,
       2,
       "localhost",
       1},
      {"Open MPI on one machine",
       {{"OMPI_COMM_WORLD_RANK", "3"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
        {"PMIX_NAMESPACE", "prterun-box-1@1"}},
       3,
       4,
       "127.0.0.1",
       0},
      {"Open MPI on two machines",
       {{"OMPI_COMM_WORLD_RANK", "3"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"MASTER_ADDR", "node1"},
        {"MASTER_PORT", "4000"}},
       3,
       4,
       "node1",
       4000},
      {"MPICH, which has no id of the job",
       {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}},
       0,
       2,
       "127.0.0.1",
       0},
      {"PMI that does not count the ranks of a machine",
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
       1,
       2,
       "127.0.0.1",
       0},
      {"Slurm",
       {{"SLURM_PROCID", "5"},
        {"SLURM_NTASKS", "8"},
        {"SLURM_JOB_ID", "99"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_STEP_NODELIST", "gpu[03-04,09]"}},
       5,
       8,
       "gpu03",
       0},
      {"a step of fewer tasks than its job, on one node",
       {{"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "8"},
        {"SLURM_STEP_NUM_TASKS", "2"},
        {"SLURM_STEP_NUM_NODES", "1"},
        {"SLURM_JOB_ID", "99"},
        {"SLURM_NODELIST", "login,node7"}},
       1,
       2,
       "login",
       0},
      {"Slurm with a place to meet",
       {{"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "65535"}},
       1,
       2,
       "127.0.0.1",
       65535},
  };
  return all;
}

TEST(Environment, Launchers) {
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto launch = read(c.environment);
    ASSERT_TRUE(launch.has_value());
    EXPECT_EQ(launch->rank, c.rank);
    EXPECT_EQ(launch->size, c.size);
    EXPECT_EQ(launch->address, c.address);
    EXPECT_FALSE(launch->served_by_launcher);
    if (c.port != 0) {
      EXPECT_EQ(launch->port, c.port);
    } else {
      EXPECT_GE(launch->port, 20000);
      EXPECT_LT(launch->port, 32000);
    }
  }
}

TEST(Environment, NoLauncher) {
  EXPECT_FALSE(read({}).has_value());
  EXPECT_FALSE(read({{"HOME", "/root"}, {"MASTER_ADDR", "a"}}).has_value());
  // A shell of salloc has no rank; a batch script is not one of the tasks.
  EXPECT_FALSE(read({{"SLURM_NTASKS", "4"}}).has_value());
  EXPECT_FALSE(read({{"SLURM_PROCID", "0"},
                     {"SLURM_NTASKS", "4"},
                     {"ENVIRONMENT", "BATCH"}})
                   .has_value());
  EXPECT_TRUE(read({{"SLURM_PROCID", "0"},
                    {"SLURM_NTASKS", "4"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_NODELIST", "a"},
                    {"ENVIRONMENT", "BATCH"}})
                  .has_value());
}

TEST(Environment, TorchrunsAgentServesTheStore) {
  const auto launch = read(
      {{"RANK", "0"},
       {"WORLD_SIZE", "4"},
       {"MASTER_ADDR", "localhost"},
       {"MASTER_PORT", "29500"},
       {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_TRUE(launch->served_by_launcher);
}

TEST(Environment, RanksOfAJobAgreeOnThePort) {
  const auto port = [](const char* rank, const char* job) {
    return read({{"SLURM_PROCID", rank},
                 {"SLURM_NTASKS", "4"},
                 {"SLURM_JOB_ID", job},
                 {"SLURM_NODELIST", "a"}})
        ->port;
  };
  EXPECT_EQ(port("0", "123"), port("3", "123"));
  EXPECT_NE(port("0", "123"), port("0", "124"));
  // The parent process stands in for a job without an id.
  const auto mpich = [](const char* rank) {
    return read({{"PMI_RANK", rank}, {"PMI_SIZE", "2"}})->port;
  };
  EXPECT_EQ(mpich("0"), mpich("1"));
}

// What tells a job's ranks from those of others.
TEST(Environment, TheJob) {
  const std::map<std::string, std::string> slurm{
      {"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "3"},
      {"SLURM_NODELIST", "a"},
      {"SLURM_STEP_ID", "0"}};
  const auto with = [&](Environment more) {
    more.insert(slurm.begin(), slurm.end());
    return *read(more);
  };
  const auto first = with({{"SLURM_JOB_ID", "1000"}});
  const auto second = with({{"SLURM_JOB_ID", "5501"}});
  EXPECT_EQ(first.job, "1000.0");
  EXPECT_EQ(second.job, "5501.0");
  // Their ports are made of their ids, and the first ones happen to be equal.
  EXPECT_EQ(first.port, second.port);
  EXPECT_EQ(first.other_ports.size(), 7U);
  EXPECT_NE(first.other_ports, second.other_ports);
  for (const auto port : first.other_ports) {
    EXPECT_GE(port, 20000);
    EXPECT_LT(port, 32000);
  }
  EXPECT_NE(
      with({{"SLURM_JOB_ID", "1000"}, {"SLURM_CLUSTER_NAME", "b"}}).job,
      first.job);
  // Where the port is given there is no choice.
  const auto given = with({{"SLURM_JOB_ID", "1000"}, {"MASTER_PORT", "4000"}});
  EXPECT_EQ(given.job, "1000.0");
  EXPECT_TRUE(given.other_ports.empty());
  // The parent process tells jobs apart where it makes the port: ranks on
  // several machines have several.
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}})->job, "process 4711");
  EXPECT_EQ(
      read({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MASTER_PORT", "4000"}})
          ->job,
      "");
  EXPECT_EQ(
      read({{"OMPI_COMM_WORLD_RANK", "0"},
            {"OMPI_COMM_WORLD_SIZE", "2"},
            {"PMIX_NAMESPACE", "prterun-box-1@1"},
            {"MASTER_PORT", "4000"}})
          ->job,
      "prterun-box-1@1");
  const Environment torchrun{
      {"RANK", "0"},
      {"WORLD_SIZE", "2"},
      {"MASTER_ADDR", "a"},
      {"MASTER_PORT", "4000"}};
  EXPECT_EQ(read(torchrun)->job, "");
  auto named = torchrun;
  named["TORCHELASTIC_RUN_ID"] = "run";
  EXPECT_EQ(read(named)->job, "run");
}

TEST(Environment, Refusals) {
  struct Refusal {
    Environment environment;
    const char* text;
  };
  const std::vector<Refusal> refusals{
      {{{"RANK", "0"}}, "RANK is set but WORLD_SIZE is not"},
      {{{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set but RANK is not"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "but MASTER_ADDR is not"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}},
       "MASTER_ADDR is set but MASTER_PORT is not"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}},
       "RANK is 2 but WORLD_SIZE is 2; ranks are counted from 0"},
      {{{"RANK", "one"}, {"WORLD_SIZE", "2"}},
       "RANK must be a number from 0 to 2147483647 but is 'one'"},
      {{{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "a"},
        {"MASTER_PORT", "70000"}},
       "MASTER_PORT must be a number from 0 to 65535 but is '70000'"},
      {{{"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
       "ranks are on several machines"},
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
       "neither SLURM_STEP_NODELIST nor SLURM_NODELIST"},
      {{{"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "4"},
        {"SLURM_NODELIST", "a[1-"}},
       "cannot read the Slurm node list 'a\\[1-'"},
  };
  for (const auto& [environment, text] : refusals) {
    try {
      read(environment);
      ADD_FAILURE() << "no error: " << text;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(
          error.what_without_backtrace(),
          ::testing::AllOf(
              ::testing::StartsWith("[World::from_environment] "),
              ::testing::ContainsRegex(text)));
    }
  }
}

TEST(Environment, FirstSlurmHost) {
  EXPECT_EQ(first_slurm_host("node1"), "node1");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("node[07-09,11],gpu1"), "node07");
  EXPECT_EQ(first_slurm_host("node[3]"), "node3");
  EXPECT_EQ(first_slurm_host("r[1-2]n[5,6]-ib,x"), "r1n5-ib");
}

}  // namespace environment_test
}  // namespace tessera::detail
