// Who this process is, as told by the environment of the launcher.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::detail {

struct Launch {
  int64_t rank = 0;
  int64_t size = 1;
  // Where the ranks meet.
  std::string address;
  uint16_t port = 0;
  // Where they meet instead if another program has that port, in this order;
  // empty where the port was given.
  std::vector<uint16_t> other_ports;
  // The same for all ranks and unlike that of other jobs, whose ranks may come
  // to the same place; empty where nothing tells it.
  std::string job;
  // The launcher itself serves the store there (torchrun's agent does), so that
  // rank 0 must not.
  bool served_by_launcher = false;
};

// The value of a variable; nullopt where it is not set.
using GetEnv =
    std::function<std::optional<std::string>(const std::string& name)>;

// Reads torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or
// Open MPI's (OMPI_COMM_WORLD_RANK, _SIZE), or those of MPICH and other PMI
// launchers (PMI_RANK, PMI_SIZE), or Slurm's (SLURM_PROCID, SLURM_NTASKS), in
// this order; nullopt where there are none of them.
//
// Launchers other than torchrun name no meeting place. MASTER_ADDR and
// MASTER_PORT are taken where they are set. Otherwise Slurm's ranks meet at the
// first host of the step, those of mpirun on this machine (more than one
// machine is an error that asks for MASTER_ADDR), on a port made of the job's
// id, or of `parent` (which identifies the parent process) where the job has
// none. Such a port may be another program's: there are some to choose from.
//
// Throws c10::ValueError on a value that is no number or out of range, and on a
// variable that is missing beside others. Pure: reads nothing but `get`.
std::optional<Launch> read_environment(
    const GetEnv& get, const std::string& parent);

// As above, from the environment of this process.
std::optional<Launch> read_environment();

// The first host of a Slurm node list: "node[07-09,11],gpu1" gives "node07".
std::string first_slurm_host(const std::string& nodes);

}  // namespace tessera::detail
