"""Checkpoints of torch itself: files of torch.save, directories of DCP."""

import os
import zipfile
from typing import Any

import torch


def read_foreign(path: str) -> dict[str, torch.Tensor] | None:
    """The tensors of a checkpoint that only torch can read; None for others."""
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, ".metadata")):
            return _flat(_read_dcp(path))
        return None
    if os.path.isfile(path) and _is_torch_file(path):
        return _flat(torch.load(path, map_location="cpu", weights_only=True))
    return None


def _is_torch_file(path: str) -> bool:
    """A zip, or the pickle that torch.save wrote before."""
    if path.endswith(".safetensors"):
        return False
    if zipfile.is_zipfile(path):
        return True
    with open(path, "rb") as file:
        return file.read(2)[:1] == b"\x80"


def _read_dcp(path: str) -> dict[str, Any]:
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(path)
    metadata = reader.read_metadata()
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    load(state, storage_reader=FileSystemReader(path), no_dist=True)
    return state


def _flat(value: Any) -> dict[str, torch.Tensor]:
    """Nested dicts by dotted names; what is no tensor is left out."""
    out: dict[str, torch.Tensor] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, torch.Tensor):
            out[name] = item
        elif isinstance(item, dict):
            for key, inner in item.items():
                add(f"{name}.{key}" if name else str(key), inner)

    add("", value)
    return out
