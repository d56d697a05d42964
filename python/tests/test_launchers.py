"""examples/train.py, as each launcher starts it, has the losses of simulated ranks.

The environments that mpirun and srun set stand in for them, and forks for what they
start; Open MPI's mpirun and Slurm's srun themselves are used where they are installed
and, of Slurm, a node is up.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest
from programs import run_together

PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "train.py"
RANKS = 4


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def environment(**variables):
    launchers = ("RANK", "WORLD_SIZE", "MASTER_", "OMPI_", "PMI_", "SLURM_")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(launchers)}
    package = pathlib.Path(sys.modules["tessera"].__file__).parents[1]
    return {
        **plain,
        "PYTHONPATH": str(package),
        "OMP_NUM_THREADS": "1",
        **variables,
    }


def printed_by(command, env):
    """What the command prints, a launcher's with all that it starts."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed(environments):
    """What the program prints, started together in each of the environments."""
    ended = run_together(PROGRAM, [((), env) for env in environments])
    for done in ended:
        assert done.returncode == 0, done.stderr
    return "".join(done.stdout for done in ended)


@pytest.fixture(scope="module")
def simulated():
    import tessera  # noqa: F401  (where the package is)

    text = printed([environment()])
    assert text.count("loss") == 3
    return text


def test_torchrun(simulated):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(RANKS), str(PROGRAM)]
    assert printed_by(command, environment()) == simulated


def by_rank(variables):
    port = free_port()
    return [
        environment(MASTER_PORT=port, **variables(str(rank)))
        for rank in range(RANKS)
    ]


def test_environment_of_mpirun(simulated):
    environments = by_rank(
        lambda rank: {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": str(RANKS),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(RANKS),
        }
    )
    assert printed(environments) == simulated


def is_open_mpi(program):
    if program is None:
        return False
    done = subprocess.run([program, "--version"], capture_output=True, text=True)
    return "Open MPI" in done.stdout


@pytest.mark.skipif(
    not is_open_mpi(shutil.which("mpirun")), reason="Open MPI is not installed"
)
def test_mpirun(simulated):
    command = ["mpirun", "-n", str(RANKS), "--oversubscribe", "--allow-run-as-root"]
    command += [sys.executable, str(PROGRAM)]
    env = environment(MASTER_PORT=free_port())
    assert printed_by(command, env) == simulated


def test_mpich(simulated):
    environments = by_rank(lambda rank: {"PMI_RANK": rank, "PMI_SIZE": str(RANKS)})
    assert printed(environments) == simulated


def has_slurm():
    if shutil.which("sinfo") is None or shutil.which("srun") is None:
        return False
    done = subprocess.run(
        ["sinfo", "--noheader", "--states", "idle"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return bool(done.stdout.strip())


@pytest.mark.skipif(not has_slurm(), reason="no node of Slurm is idle")
def test_srun(simulated):
    command = ["srun", "--ntasks", str(RANKS), "--overcommit"]
    command += [sys.executable, str(PROGRAM)]
    env = environment(MASTER_PORT=free_port())
    assert printed_by(command, env) == simulated


def test_environment_of_slurm(simulated):
    environments = by_rank(
        lambda rank: {
            "SLURM_PROCID": rank,
            "SLURM_NTASKS": str(RANKS),
            "SLURM_NODELIST": "localhost",
        }
    )
    assert printed(environments) == simulated
