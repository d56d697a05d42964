"""Directories of torch.distributed.checkpoint, read without running them.

Their `.metadata` is a pickle, which can call anything and change any class that
it gets hold of. Here it gets records without code for the few classes that torch
writes there, and is refused where it names anything else.
"""

import contextlib
import io
import os
import pathlib
import pickle
from typing import Any

import torch

_METADATA = "torch.distributed.checkpoint.metadata"

# By module: what `.metadata` is made of, beside dtypes.
_RECORDS = {
    "pathlib": {"PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    _METADATA: {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.serialization": {"_get_layout"},
}
# Types that a pickle can make, and cannot change.
_TYPES = {("torch", "Size"): tuple, ("collections", "OrderedDict"): dict}


class _Record:
    """What the pickle says of an object."""

    state: tuple[Any, ...] = ()

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple):
            self.state = state
        else:
            self.__dict__.update(state)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.records: dict[str, type[_Record]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _TYPES:
            return _TYPES[module, name]
        if name in _RECORDS.get(module, ()):
            # One of this unpickler: what the pickle does to it ends with it.
            return self.records.setdefault(name, type(name, (_Record,), {}))
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which is no part of one"
        )


def read_dcp(path: str) -> dict[str, Any]:
    """Everything that the checkpoint in the directory `path` holds.

    What is not a tensor is left out where it is more than plain values. Raises
    RuntimeError where the files are not what torch.distributed.checkpoint
    writes.
    """
    file = os.path.join(path, ".metadata")
    try:
        return _read(path, file)
    except Exception as error:
        # A damaged pickle may raise anything.
        raise RuntimeError(
            f"[load] {file} is not the metadata of a checkpoint of "
            f"torch.distributed.checkpoint that can be read: {error}"
        ) from error


def _read(path: str, file: str) -> dict[str, Any]:
    with _opened(file) as opened:
        metadata = _Unpickler(opened).load()
    places = {
        (index.fqn, index.__dict__.get("offset")): info
        for index, info in metadata.storage_data.items()
    }
    held: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if type(entry).__name__ == "TensorStorageMetadata":
            held[name] = _read_tensor(path, name, entry, places)
            continue
        with contextlib.suppress(pickle.UnpicklingError):
            held[name] = _read_item(path, places[name, None])
    return {name: item for name, item in held.items() if item is not None}


def _read_tensor(
    path: str, name: str, entry: Any, places: dict[Any, Any]
) -> torch.Tensor:
    dtype = entry.properties.state[0]
    whole = torch.empty(entry.size, dtype=dtype)
    filled = 0
    for chunk in entry.chunks:
        part = _read_item(path, places[name, chunk.offsets])
        if tuple(part.shape) != chunk.sizes or part.dtype != dtype:
            raise ValueError(
                f"'{name}' has a part of shape {tuple(part.shape)} and "
                f"{part.dtype} where it says {chunk.sizes} and {dtype}"
            )
        into = whole
        for dim, start in enumerate(chunk.offsets):
            into = into.narrow(dim, start, part.shape[dim])
        into.copy_(part)
        filled += part.numel()
    if filled != whole.numel():
        raise ValueError(
            f"'{name}' has {whole.numel()} elements, but its parts {filled}"
        )
    return whole


def _read_item(path: str, info: Any) -> Any:
    if info.__dict__.get("transform_descriptors"):
        raise ValueError(
            f"its files are transformed by {info.transform_descriptors}: load "
            "it with torch.distributed.checkpoint"
        )
    name = info.relative_path
    inside = not os.path.isabs(name) and ".." not in pathlib.PurePath(name).parts
    if not inside:
        raise ValueError(f"it names a file outside its directory: {name!r}")
    with _opened(os.path.join(path, name)) as opened:
        opened.seek(info.offset)
        data = opened.read(info.length)
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _opened(file: str) -> Any:
    if os.path.exists(file) and not os.path.isfile(file):
        raise ValueError(f"{file} is not a file")
    return open(file, "rb")
