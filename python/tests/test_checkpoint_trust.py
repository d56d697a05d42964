"""Files of others: nothing in them runs, and none is waited for."""

import os
import pickle
import sys

import pytest
import torch
from checkpoint_model import Model, full_state, mesh_of, same, sharded
from processes import RANKS
from test_checkpoint_files import write_safetensors

import tessera as ts
from tessera import Shard, checkpoint


class Hostile:
    """What a pickle of it does when it is read is to make a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def hostile_metadata(directory, mark):
    (directory / ".metadata").write_bytes(pickle.dumps(Hostile(mark)))


def write_index(directory, tensors):
    write_safetensors(directory / "model-00001-of-00001.safetensors", tensors)
    names = ", ".join(
        f'"{name}": "model-00001-of-00001.safetensors"' for name in tensors
    )
    index = directory / "model.safetensors.index.json"
    index.write_text('{"weight_map": {' + names + "}}")


def write_native(directory, tensors):
    path = checkpoint.save(directory / "run", tensors, step=1)
    for name in os.listdir(path):
        os.rename(os.path.join(path, name), directory / name)


def write_single(directory, tensors):
    write_safetensors(directory / "model.safetensors", tensors)


@pytest.mark.parametrize("write", [write_single, write_index, write_native])
def test_pickles_beside_other_formats_are_not_opened(tmp_path, write):
    held = tmp_path / "held"
    held.mkdir()
    expected = dict(Model().state_dict())
    write(held, expected)
    hostile_metadata(held, tmp_path / "mark")
    same(checkpoint.load(held), expected)
    model = Model()
    checkpoint.load(held, model)
    same(model.state_dict(), expected)
    with ts.simulate(RANKS):
        model = sharded(mesh_of(), Shard(0))
        checkpoint.load(held, model)
        same(full_state(model), expected)
    assert not (tmp_path / "mark").exists()


def test_pickles_inside_checkpoints_are_not_opened(tmp_path):
    state = {"x": torch.ones(3)}
    path = checkpoint.save(tmp_path / "run", state, step=1)
    hostile_metadata(tmp_path / "run", tmp_path / "mark")
    hostile_metadata(tmp_path / "run" / "step_1", tmp_path / "mark")
    checkpoint.load(path, state)
    checkpoint.load_latest(tmp_path / "run", state)
    # Damaged: it is no other format for that.
    os.remove(tmp_path / "run" / "step_1" / "manifest.json")
    with pytest.raises(RuntimeError, match="manifest.json is missing"):
        checkpoint.load(path)
    assert not (tmp_path / "mark").exists()


def refused_dcp(path, text):
    for call in (
        lambda: checkpoint.load(path),
        lambda: checkpoint.load(path, {"model": Model()}),
    ):
        with pytest.raises(RuntimeError, match="is not the metadata") as caught:
            call()
        assert text in str(caught.value), caught.value


def save_dcp(path):
    import torch.distributed.checkpoint as dcp

    state = {"model": Model().state_dict(), "epoch": 3}
    dcp.save(state, checkpoint_id=path, no_dist=True)
    with open(path / ".metadata", "rb") as file:
        return pickle.load(file)


def test_hostile_metadata_is_refused(tmp_path):
    held = tmp_path / "held"
    held.mkdir()
    hostile_metadata(held, tmp_path / "mark")
    refused_dcp(held, "mkdir, which is no part of one")
    # In the place of a value of real metadata.
    metadata = save_dcp(held)
    metadata.planner_data = Hostile(tmp_path / "mark")
    (held / ".metadata").write_bytes(pickle.dumps(metadata))
    refused_dcp(held, "mkdir, which is no part of one")
    assert not (tmp_path / "mark").exists()
    for module, name in (
        ("builtins", "eval"),
        ("torch", "load"),
        ("torch", "serialization.load"),
        ("torch.serialization", "load"),
        ("torch.distributed.checkpoint.metadata", "os.system"),
        ("pathlib", "os.system"),
    ):
        named = b"\x8c" + bytes([len(module)]) + module.encode()
        named += b"\x8c" + bytes([len(name)]) + name.encode()
        (held / ".metadata").write_bytes(b"\x80\x04" + named + b"\x93.")
        refused_dcp(held, "which is no part of one")


def test_metadata_changes_no_class(tmp_path):
    """A pickle may set attributes of the classes that it is given."""
    from torch.distributed.checkpoint.metadata import Metadata

    held = tmp_path / "held"
    held.mkdir()
    named = b"\x8c\x25torch.distributed.checkpoint.metadata\x8c\x08Metadata\x93"
    attributes = b"N}\x8c\x06hacked\x8c\x03yess\x86b."
    (held / ".metadata").write_bytes(b"\x80\x04" + named + attributes)
    refused_dcp(held, "")
    assert not hasattr(Metadata, "hacked")


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../secret", 3]
)
def test_metadata_names_files_of_its_directory(tmp_path, name):
    held = tmp_path / "held"
    metadata = save_dcp(held)
    for info in metadata.storage_data.values():
        info.relative_path = name
    (held / ".metadata").write_bytes(pickle.dumps(metadata))
    refused_dcp(held, "outside its directory" if name != 3 else "")


def test_damaged_metadata(tmp_path):
    """Whatever is wrong with it is an error that names it, and no crash."""
    held = tmp_path / "held"
    save_dcp(held)
    data = (held / ".metadata").read_bytes()
    generator = torch.Generator().manual_seed(1)
    for length in torch.randint(len(data), (30,), generator=generator).tolist():
        (held / ".metadata").write_bytes(data[:length])
        refused_dcp(held, "")
    for at in torch.randint(len(data), (200,), generator=generator).tolist():
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        (held / ".metadata").write_bytes(changed)
        try:
            checkpoint.load(held)
        except RuntimeError as error:
            assert "is not the metadata" in str(error)


def test_pipes_are_not_waited_for(tmp_path):
    held = tmp_path / "held"
    metadata = save_dcp(held)
    name = next(iter(metadata.storage_data.values())).relative_path
    os.remove(held / name)
    os.mkfifo(held / name)
    refused_dcp(held, "is not a file")
    os.remove(held / ".metadata")
    os.mkfifo(held / ".metadata")
    refused_dcp(held, "is not a file")
    os.mkfifo(tmp_path / "model.safetensors")
    os.mkfifo(tmp_path / "model.pt")
    for path in (tmp_path, tmp_path / "model.safetensors", tmp_path / "model.pt"):
        with pytest.raises(RuntimeError, match="a pipe, a socket or a device"):
            checkpoint.load(path)


def test_files_of_torch_run_nothing(tmp_path):
    for legacy in (False, True):
        torch.save(
            {"x": Hostile(tmp_path / "mark")},
            tmp_path / "any.pt",
            _use_new_zipfile_serialization=not legacy,
        )
        with pytest.raises(pickle.UnpicklingError, match="mkdir"):
            checkpoint.load(tmp_path / "any.pt")
    assert not (tmp_path / "mark").exists()


def test_distributed_tensors_of_files_lie_in_vain():
    """torch.load with weights_only calls rebuild_dtensor with any arguments."""
    from tessera._pickle import rebuild_dtensor, reduce_dtensor

    with ts.simulate(RANKS):
        mesh = mesh_of()
        x = ts.distribute_tensor(torch.rand(9, 4), mesh, [Shard(0)])
        _, arguments = reduce_dtensor(x)
        wrong = [None, -1, 2**62, 1e9, "x", [], [[]], (), (-1, 4), (2**40, 4),
                 (9, 4, 1), {"a": 1}, torch.ones(2), [torch.ones(2)] * RANKS,
                 ["S", 5], [("S", 5)], [("S", -9)], [("M", None, 0)], [("P", "x")],
                 ("cpu", [9, 9], None), ("meta", [0, 1], None), (9, ["x"])]
        for position in range(len(arguments)):
            for value in wrong:
                changed = list(arguments)
                changed[position] = value
                try:
                    made = rebuild_dtensor(*changed)
                    # What is made can be read: it holds what it says.
                    made.full_tensor().clone()
                except Exception as error:
                    assert "INTERNAL ASSERT" not in str(error), error
    assert sys.exc_info() == (None, None, None)
