#include "comm/process/environment.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <sstream>

namespace tessera::detail {

namespace {

constexpr const char* kCaller = "[World::from_environment] ";

std::optional<std::string> first_of(
    const GetEnv& get, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (auto value = get(name); value && !value->empty()) return value;
  }
  return std::nullopt;
}

int64_t number(const std::string& name, const std::string& text, int64_t max) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  TORCH_CHECK_VALUE(
      error == std::errc() && stop == end && value >= 0 && value <= max,
      kCaller,
      name,
      " must be a number from 0 to ",
      max,
      " but is '",
      text,
      "'; start the program with a launcher, or unset it");
  return value;
}

// The value of a variable that the launcher must have set, since it has set
// `beside`.
int64_t required_number(
    const GetEnv& get,
    const char* name,
    const char* beside,
    int64_t max = INT32_MAX) {
  const auto text = get(name);
  TORCH_CHECK_VALUE(
      text.has_value(),
      kCaller,
      beside,
      " is set but ",
      name,
      " is not; start the program with a launcher, or set both");
  return number(name, *text, max);
}

// A port below those the kernel hands out by itself, the same for all who know
// the text: FNV-1a, as std::hash may differ between two builds.
uint16_t port_of(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return static_cast<uint16_t>(20000 + hash % 12000);
}

Launch read_rank(const GetEnv& get, const char* rank, const char* size) {
  Launch launch;
  launch.rank = required_number(get, rank, size);
  launch.size = required_number(get, size, rank);
  TORCH_CHECK_VALUE(
      launch.rank < launch.size,
      kCaller,
      rank,
      " is ",
      launch.rank,
      " but ",
      size,
      " is ",
      launch.size,
      "; ranks are counted from 0");
  return launch;
}

// `job` is what the launcher says of it; `parent` stands in for that where the
// port is made of it.
void read_port(
    const GetEnv& get,
    Launch& launch,
    const std::optional<std::string>& job,
    const std::string& parent) {
  constexpr int kOtherPorts = 7;
  launch.job = job.value_or("");
  if (const auto port = first_of(get, {"MASTER_PORT"})) {
    launch.port =
        static_cast<uint16_t>(number("MASTER_PORT", *port, UINT16_MAX));
    return;
  }
  launch.job = job.value_or(parent);
  launch.port = port_of(launch.job);
  for (int i = 1; i <= kOtherPorts; ++i) {
    launch.other_ports.push_back(port_of(launch.job + " " + std::to_string(i)));
  }
}

Launch read_torchrun(const GetEnv& get) {
  Launch launch = read_rank(get, "RANK", "WORLD_SIZE");
  const auto address = first_of(get, {"MASTER_ADDR"});
  TORCH_CHECK_VALUE(
      address.has_value(),
      kCaller,
      "RANK and WORLD_SIZE are set but MASTER_ADDR is not; start the program "
      "with torchrun, or set MASTER_ADDR and MASTER_PORT");
  launch.address = *address;
  launch.port = static_cast<uint16_t>(
      required_number(get, "MASTER_PORT", "MASTER_ADDR", UINT16_MAX));
  launch.served_by_launcher =
      get("TORCHELASTIC_USE_AGENT_STORE") == std::string("True");
  launch.job = get("TORCHELASTIC_RUN_ID").value_or("");
  return launch;
}

Launch read_mpi(
    const GetEnv& get,
    const char* rank,
    const char* size,
    const char* local_size,
    std::initializer_list<const char*> jobs,
    const std::string& parent) {
  Launch launch = read_rank(get, rank, size);
  const auto address = first_of(get, {"MASTER_ADDR"});
  if (address) {
    launch.address = *address;
  } else {
    const auto local = get(local_size);
    TORCH_CHECK_VALUE(
        !local || number(local_size, *local, INT32_MAX) == launch.size,
        kCaller,
        "the ",
        launch.size,
        " ranks are on several machines (",
        local_size,
        " is ",
        *local,
        "), which need a place to meet; export MASTER_ADDR, the address of "
        "rank 0, to all of them (mpirun -x MASTER_ADDR=...)");
    launch.address = "127.0.0.1";
  }
  read_port(get, launch, first_of(get, jobs), parent);
  return launch;
}

Launch read_slurm(const GetEnv& get, const std::string& parent) {
  const char* size =
      get("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  Launch launch = read_rank(get, "SLURM_PROCID", size);
  const auto address = first_of(get, {"MASTER_ADDR"});
  const auto nodes = first_of(
      get, {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  TORCH_CHECK_VALUE(
      address || nodes,
      kCaller,
      "SLURM_PROCID is set but neither SLURM_STEP_NODELIST nor SLURM_NODELIST; "
      "start the program with srun, or set MASTER_ADDR");
  launch.address = address ? *address : first_slurm_host(*nodes);
  auto job = first_of(get, {"SLURM_JOB_ID", "SLURM_JOBID"});
  if (job) {
    *job += "." + first_of(get, {"SLURM_STEP_ID", "SLURM_STEPID"}).value_or("");
    if (const auto cluster = get("SLURM_CLUSTER_NAME")) *job += "@" + *cluster;
  }
  read_port(get, launch, job, parent);
  return launch;
}

// The process that has started this one: its number, and, as numbers are used
// again, when it started and among which processes it has that number.
std::string parent_process() {
  const auto number = std::to_string(getppid());
  std::ifstream stat("/proc/" + number + "/stat");
  std::string text{std::istreambuf_iterator<char>(stat), {}};
  // The name of the program, in parentheses, may hold anything.
  std::istringstream rest(text.substr(text.rfind(')') + 1));
  std::string field;
  // The 22nd field; the first after the name is the third.
  for (int i = 3; i <= 22; ++i) rest >> field;
  struct stat space {};
  const bool known = ::stat("/proc/self/ns/pid", &space) == 0;
  return "process " + number + " " + field + " " +
         (known ? std::to_string(space.st_ino) : "");
}

}  // namespace

std::string first_slurm_host(const std::string& nodes) {
  std::string host;
  for (size_t i = 0; i < nodes.size() && nodes[i] != ','; ++i) {
    if (nodes[i] != '[') {
      host += nodes[i];
      continue;
    }
    const size_t close = nodes.find(']', i);
    TORCH_CHECK_VALUE(
        close != std::string::npos,
        kCaller,
        "cannot read the Slurm node list '",
        nodes,
        "'; set MASTER_ADDR to the address of rank 0");
    host += nodes.substr(i + 1, nodes.find_first_of(",-]", i) - i - 1);
    i = close;
  }
  return host;
}

std::optional<Launch> read_environment(
    const GetEnv& get, const std::string& parent) {
  if (get("RANK") || get("WORLD_SIZE")) return read_torchrun(get);
  if (get("OMPI_COMM_WORLD_RANK")) {
    return read_mpi(
        get,
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"},
        parent);
  }
  if (get("PMI_RANK")) {
    return read_mpi(
        get,
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALNRANKS",
        {"PMI_JOBID", "PMIX_NAMESPACE"},
        parent);
  }
  // A batch script has Slurm's variables too, but is no rank: srun's steps are.
  const bool script = get("ENVIRONMENT") == std::string("BATCH") &&
                      !first_of(get, {"SLURM_STEP_ID", "SLURM_STEPID"});
  if (get("SLURM_PROCID") && !script) return read_slurm(get, parent);
  return std::nullopt;
}

std::optional<Launch> read_environment() {
  return read_environment(
      [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        if (value == nullptr) return std::nullopt;
        return value;
      },
      parent_process());
}

}  // namespace tessera::detail
