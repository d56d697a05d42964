"""Checkpoints: saved by any number of ranks, loaded by any other number.

    from tessera import checkpoint

    state = {"model": model, "optimizer": optimizer, "position": 0}
    checkpoint.save("run", state, step=100, keep=3)
    ...
    found = checkpoint.load_latest("run", state)   # None where there is none

Each rank writes and reads only what it holds, into any layout. A checkpoint
appears whole, by one rename, or not at all; every byte has a checksum that
loading verifies. The files are safetensors. See docs/checkpoints.md.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tessera import _C
from tessera._C import CheckpointInfo, PendingSave
from tessera._checkpoint_formats import read_foreign
from tessera._checkpoint_state import State, decode, join_world
from tessera._training_loop import TrainingLoop

__all__ = [
    "CheckpointInfo",
    "PendingSave",
    "TrainingLoop",
    "checkpoints_in",
    "info",
    "load",
    "load_latest",
    "merge",
    "save",
]

CheckpointInfo.__module__ = __name__
PendingSave.__module__ = __name__


def save(
    root: str | os.PathLike[str],
    state: Any,
    *,
    step: int = 0,
    keep: int = 0,
    asynchronous: bool = False,
) -> Any:
    """Saves `state` as the checkpoint of `step` in the directory `root`.

    `state` is a module, or a dict whose values are tensors (distributed or
    plain), modules, optimizers, anything with `state_dict` and
    `load_state_dict`, numbers, strings, and lists and dicts of these. Of what
    is plain, rank 0's value is saved. Every rank calls it; without a world this
    process saves alone.

    With `keep`, only the `keep` checkpoints that were saved last stay. With
    `asynchronous` it returns a PendingSave as soon as the tensors are copied;
    otherwise the path of the checkpoint. Raises on every rank, and leaves what
    was there, if a rank fails.
    """
    join_world()
    tensors, values = State(state, "save").flatten()
    write = _C.checkpoint_save_async if asynchronous else _C.checkpoint_save
    return write(os.fspath(root), tensors, step, keep, values)


def load(
    path: str | os.PathLike[str],
    state: Any = None,
    *,
    strict: bool = True,
    generators: bool = False,
    mmap: bool = False,
    names: Iterable[str] | None = None,
) -> Any:
    """Loads a checkpoint into `state`, in place, whatever its layout.

    `path` is a checkpoint (`root/step_100`), a safetensors file, the directory
    of a Hugging Face model, a file of `torch.save` or a directory of
    `torch.distributed.checkpoint`. Every rank calls it. Numbers and strings are
    put into the dict `state`. Returns what the checkpoint says of itself. With
    `generators`, torch's default generators go on from where they were; unless
    `strict`, tensors that were not saved stay as they are.

    Without `state` the tensors, or those in `names`, come as plain ones in a
    dict: no world is needed and nothing is sent. With `mmap`, tensors that lie
    in the files as in memory are mapped instead of copied: the files must keep
    their sizes while the tensors live.

    Raises ValueError where names or shapes do not fit, RuntimeError, naming
    file and tensor, where a file is damaged.
    """
    path = os.fspath(path)
    if state is None:
        foreign = read_foreign(path)
        if foreign is not None:
            wanted = foreign.tensors if names is None else list(names)
            return {name: foreign.tensors[name] for name in wanted}
        return _C.checkpoint_load_plain(
            path, [] if names is None else list(names), mmap
        )
    join_world()
    target = State(state, "load")
    foreign = read_foreign(path)
    if foreign is not None:
        return target.fill(foreign, path, strict)
    found = _C.checkpoint_load(path, _request(target, strict), generators)
    target.restore(decode(found.values))
    return found


def load_latest(
    root: str | os.PathLike[str],
    state: Any,
    *,
    strict: bool = True,
    generators: bool = True,
) -> CheckpointInfo | None:
    """Loads the newest whole checkpoint of the directory `root`.

    That is the one that was saved last. Where it is damaged, the one before it
    is taken and a warning says so (`skipped` of what is returned has the
    reasons). None where there is none at all. Others may save there meanwhile.
    Otherwise as load().
    """
    join_world()
    target = State(state, "load_latest")
    found = _C.checkpoint_load_latest(
        os.fspath(root), _request(target, strict), generators
    )
    if found is not None:
        target.restore(decode(found.values))
    return found


def _request(
    target: State, strict: bool
) -> Callable[[str], dict[str, torch.Tensor]]:
    def tensors_for(path: str) -> dict[str, torch.Tensor]:
        saved = _C.checkpoint_tensors(path)
        values = decode(_C.checkpoint_info(path).values)
        return target.targets(path, saved, values, strict)

    return tensors_for


def info(path: str | os.PathLike[str]) -> CheckpointInfo:
    """What a checkpoint says of itself. Reads the manifest only."""
    return _C.checkpoint_info(os.fspath(path))


def checkpoints_in(root: str | os.PathLike[str]) -> list[str]:
    """The paths of the checkpoints in a directory, the last saved first."""
    return _C.checkpoints_in(os.fspath(root))


def merge(
    path: str | os.PathLike[str],
    file: str | os.PathLike[str],
    prefix: str = "",
    max_file_bytes: int = 0,
) -> list[str]:
    """Writes a safetensors file of the tensors that begin with `prefix`.

    Their names lose the prefix: with "model." the file is what a plain model's
    `state_dict` would give. With `max_file_bytes`, tensors of more bytes go
    into several files with an index (`model-00001-of-00003.safetensors`,
    `model.safetensors.index.json`), as Hugging Face's libraries read them.
    Returns the paths of the files. Nothing is sent.
    """
    return _C.checkpoint_merge(
        os.fspath(path), os.fspath(file), prefix, max_file_bytes
    )
