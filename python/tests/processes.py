"""Runs test bodies in four processes with torch.distributed's Gloo group."""

import os
import socket
import time
import traceback

import torch
import torch.multiprocessing as multiprocessing

RANKS = 4


def forkserver():
    """Starts processes as forks of one that has imported torch and Tessera.

    That takes seconds. So does torch._dynamo, which the first optimizer imports.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch.testing", "torch._dynamo", "pytest", "tessera"]
    )
    return context


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _run(rank: int, body, port: int, errors, use_torch: bool, env) -> None:
    os.environ.clear()
    os.environ.update(
        env,
        RANK=str(rank),
        WORLD_SIZE=str(RANKS),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        if use_torch:
            torch.distributed.init_process_group("gloo")
        body(rank)
        if use_torch:
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
        # A spawned process does not run what is registered with atexit.
        from tessera import _world

        _world.leave()
    except BaseException:
        errors.put((rank, traceback.format_exc()))
        raise


def run(body, use_torch: bool = True) -> None:
    """Calls body(rank) on four ranks; fails with the traceback of the first.

    Without `use_torch` there is no process group, only the environment that
    torchrun would set. The processes get the environment of now.
    """
    context = forkserver()
    errors = context.SimpleQueue()
    port = _free_port()
    processes = [
        context.Process(
            target=_run,
            args=(rank, body, port, errors, use_torch, dict(os.environ)),
        )
        for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=180)
    hung = [rank for rank, p in enumerate(processes) if p.is_alive()]
    for process in processes:
        if process.is_alive():
            process.kill()
    if not errors.empty():
        rank, text = errors.get()
        raise AssertionError(f"rank {rank}:\n{text}")
    assert not hung, f"ranks {hung} did not end"
    assert all(process.exitcode == 0 for process in processes)


def _call(body, environment, results, index, arguments):
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    begin = time.monotonic()
    try:
        said = body(*arguments)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    results.put((index, said, time.monotonic() - begin))


class Processes:
    """Bodies in processes of their own, which end with the scope."""

    def __init__(self):
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self.started:
            if process.is_alive():
                process.kill()
            process.join()

    def start(self, calls):
        """Starts (body, arguments, variables) of each call."""
        self.results = forkserver().SimpleQueue()
        fresh = []
        for index, (body, arguments, variables) in enumerate(calls):
            environment = {**os.environ, **variables}
            fresh.append(
                forkserver().Process(
                    target=_call,
                    args=(body, environment, self.results, index, arguments),
                )
            )
        for process in fresh:
            process.start()
        self.started += fresh
        return fresh

    def gather(self, count, limit):
        """What `count` of them return or raise, with the seconds, by index."""
        deadline = time.monotonic() + limit
        said = {}
        while len(said) < count and time.monotonic() < deadline:
            if self.results.empty():
                time.sleep(0.01)
                continue
            index, text, seconds = self.results.get()
            said[index] = text, seconds
        return said
