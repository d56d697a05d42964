#include "comm/process/environment.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <initializer_list>

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

void read_port(const GetEnv& get, Launch& launch, const std::string& job) {
  const auto port = first_of(get, {"MASTER_PORT"});
  launch.port =
      port ? static_cast<uint16_t>(number("MASTER_PORT", *port, UINT16_MAX))
           : port_of(job);
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
  return launch;
}

Launch read_mpi(
    const GetEnv& get,
    const char* rank,
    const char* size,
    const char* local_size,
    std::initializer_list<const char*> jobs,
    int64_t parent) {
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
  read_port(get, launch, first_of(get, jobs).value_or(std::to_string(parent)));
  return launch;
}

Launch read_slurm(const GetEnv& get, int64_t parent) {
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
  const auto job = first_of(get, {"SLURM_JOB_ID", "SLURM_JOBID"});
  const auto step = first_of(get, {"SLURM_STEP_ID", "SLURM_STEPID"});
  read_port(
      get,
      launch,
      job ? *job + "." + step.value_or("") : std::to_string(parent));
  return launch;
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

std::optional<Launch> read_environment(const GetEnv& get, int64_t parent) {
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
      getppid());
}

}  // namespace tessera::detail
