"""Runs Python programs as an interpreter does that has imported torch already.

Starting one takes seconds, most of them for torch; these are forks.
"""

import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import time

import torch
from processes import forkserver


def _main(program: str, arguments, env, output: str, errors: str) -> None:
    os.environ.clear()
    os.environ.update(env)
    for file, descriptor in ((output, 1), (errors, 2)):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.path.dirname(program))
    torch.set_num_threads(1)
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        # A forked process does not run what is registered with atexit.
        from tessera import _world

        _world.leave()


def run_together(program, calls, timeout: float = 180):
    """Starts the program once for each call, which is (arguments, environment).

    Returns a subprocess.CompletedProcess for each; raises
    subprocess.TimeoutExpired when one has not ended in time.
    """
    with tempfile.TemporaryDirectory() as directory:
        files = [
            [os.path.join(directory, f"{kind}_{i}") for kind in ("out", "err")]
            for i in range(len(calls))
        ]
        processes = [
            forkserver().Process(
                target=_main,
                args=(str(program), [str(a) for a in arguments], dict(env), *names),
            )
            for (arguments, env), names in zip(calls, files)
        ]
        deadline = time.monotonic() + timeout
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        hung = [process for process in processes if process.is_alive()]
        for process in hung:
            process.kill()
            process.join()
        ended = []
        for process, (arguments, _), names in zip(processes, calls, files):
            # One that is killed at once has opened nothing.
            texts = [
                pathlib.Path(name).read_text() if os.path.exists(name) else ""
                for name in names
            ]
            ended.append(
                subprocess.CompletedProcess(
                    [program, *arguments], process.exitcode, *texts
                )
            )
        if hung:
            done = ended[processes.index(hung[0])]
            raise subprocess.TimeoutExpired(
                done.args, timeout, done.stdout, done.stderr
            )
        return ended


def run_program(program, *arguments, env=None, timeout: float = 180):
    """Runs the program once, in the environment of now or in this one."""
    env = os.environ if env is None else env
    return run_together(program, [(arguments, env)], timeout)[0]
