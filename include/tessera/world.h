// A World is a set of ranks. Either each rank is a process (started by
// torchrun, mpirun or Slurm), or all ranks are simulated in this process and
// run in lock-step. The same program runs in both.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/export.h"

namespace c10d {
class Store;
}

namespace tessera {

namespace detail {
class WorldState;
}

struct WorldOptions {
  // How long the other ranks may be silent before a collective, or the start of
  // the world, throws. A collective that moves data takes what time it needs;
  // on GPUs, where that cannot be seen, the timeout is for all of it.
  // milliseconds::max() is for ever.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // Ranks meet only those of the same job: programs that come to the same
  // address by chance do not mix. Empty: the id that the launcher gave the job,
  // where from_environment finds one.
  std::string job = {};
};

// Processes of one machine exchange messages through memory that they share, up
// to 64 MiB each; TESSERA_SHARED_MEMORY in the environment is another number of
// MiB, or 0 for sockets only. Others use TCP; TESSERA_SOCKET_IFNAME names the
// network interface where the one that leads to rank 0 is not right.
//
// A process that was forked from a rank is not in its world: collectives throw
// c10::Error there. It may make a World of its own.
//
// Making a World enters it for all threads of the process; destroying it
// returns to the previous one. Meshes and distributed tensors belong to the
// world in which they were made; after it has ended, collectives on them throw.
class TESSERA_API World {
 public:
  // `ranks` ranks in this process. Throws c10::ValueError unless ranks >= 1.
  static World simulate(int64_t ranks);

  // The world that a launcher has put this process in: torchrun (RANK,
  // WORLD_SIZE, MASTER_ADDR, MASTER_PORT), mpirun (OMPI_COMM_WORLD_*, PMI_*) or
  // Slurm (SLURM_PROCID, SLURM_NTASKS). With none of them in the environment,
  // `otherwise_simulate` ranks are simulated. Communicates (rendezvous).
  static World from_environment(
      int64_t otherwise_simulate = 1, WorldOptions options = {});

  // Rank `rank` of `size` processes that meet at `address`:`port`, where rank 0
  // listens. Communicates. Throws c10::ValueError on a rank out of range,
  // c10::Error if a rank does not come in time; all may then try again.
  static World connect(
      int64_t rank,
      int64_t size,
      const std::string& address,
      uint16_t port,
      WorldOptions options = {});

  // As above, where the processes are connected to a store already (include
  // c10d's Store.hpp). It is asked through a connection of its own, keeps its
  // timeout, and must be served for as long as meshes meet for the first time.
  // Worlds that follow each other in one store are kept apart; every rank must
  // make them in the same order. Throws c10::TypeError for a null store.
  static World connect(
      int64_t rank,
      int64_t size,
      const c10::intrusive_ptr<c10d::Store>& store,
      WorldOptions options = {});

  ~World();
  World(World&&) noexcept;
  World& operator=(World&&) = delete;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int64_t size() const;
  bool simulated() const;
  // The rank of this process; 0 in a simulated world.
  int64_t rank() const;
  // Applies to collectives that start afterwards, existing meshes included.
  void set_timeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds timeout() const;
  // Waits until every rank has called it. Communicates.
  void barrier();

 private:
  explicit World(std::shared_ptr<detail::WorldState> state);
  std::shared_ptr<detail::WorldState> state_;
};

// Whether a World has been made and has not ended.
TESSERA_API bool in_world();

// How many ranks the innermost world has. Throws c10::Error outside a World.
TESSERA_API int64_t world_size();

}  // namespace tessera
