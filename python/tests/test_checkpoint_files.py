"""Checkpoints in one process, and files of other libraries."""

import json
import os
from typing import NamedTuple

import pytest
import torch
from checkpoint_model import Model, full_state, mesh_of, same, sharded, whole
from processes import RANKS
from torch import nn

import tessera as ts
from tessera import Shard, checkpoint


@pytest.fixture
def saved(tmp_path):
    """A model that four ranks saved, and its whole state."""
    torch.manual_seed(4)
    with ts.simulate(RANKS):
        model = sharded(mesh_of(), Shard(0))
        path = checkpoint.save(tmp_path / "run", {"model": model}, step=1)
        return path, full_state(model), tmp_path


def test_serving_without_a_world(saved):
    path, expected, _ = saved
    model = Model()
    checkpoint.load(path, {"model": model})
    same(model.state_dict(), expected)
    for mmap in (False, True):
        tensors = checkpoint.load(path, mmap=mmap)
        plain = {k.removeprefix("model."): v for k, v in tensors.items()}
        same(plain, expected)
    # A module on the mapped tensors: nothing is copied, and writes stay here.
    model = Model()
    model.load_state_dict(plain, assign=True)
    assert model.table.weight.data_ptr() == plain["table.weight"].data_ptr()
    ids = torch.tensor([3, 10])
    assert torch.equal(model.table(ids), expected["table.weight"][ids])
    with torch.no_grad():
        model.table.weight.zero_()
    same(checkpoint.load(path), {f"model.{k}": v for k, v in expected.items()})


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_other_numbers_of_ranks(saved, ranks):
    path, expected, _ = saved
    with ts.simulate(ranks):
        model = sharded(mesh_of(ranks), Shard(1))
        checkpoint.load(path, {"model": model})
        same(full_state(model), expected)


def test_merged_files_are_safetensors(saved):
    path, expected, tmp_path = saved
    file = tmp_path / "all.safetensors"
    checkpoint.merge(path, file, prefix="model.")
    same(checkpoint.load(file), expected)
    model = Model()
    checkpoint.load(file, model)
    same(model.state_dict(), expected)
    header = file.read_bytes()
    entries = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    assert entries["table.weight"]["shape"] == [11, 8]


def test_merged_into_several_files(saved):
    """With an index, as Hugging Face's libraries have it."""
    path, expected, tmp_path = saved
    file = tmp_path / "hf" / "model.safetensors"
    file.parent.mkdir()
    assert checkpoint.merge(path, file, prefix="model.") == [str(file)]
    limit = max(tensor.nbytes for tensor in expected.values()) - 1
    written = checkpoint.merge(
        path, file, prefix="model.", max_file_bytes=limit
    )
    count = len(written) - 1
    assert count > 1
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    names.append("model.safetensors.index.json")
    assert [os.path.basename(name) for name in written] == names
    # The single file of before is gone, as are temporary ones.
    assert sorted(os.listdir(file.parent)) == sorted(names)
    index = json.loads((file.parent / names[-1]).read_text())
    total = sum(tensor.nbytes for tensor in expected.values())
    assert index["metadata"] == {"total_size": total}
    assert sorted(index["weight_map"]) == sorted(expected)
    for name in names[:-1]:
        part = checkpoint.load(file.parent / name)
        assert {n for n, f in index["weight_map"].items() if f == name} == set(part)
        assert len(part) == 1 or sum(t.nbytes for t in part.values()) <= limit
    same(checkpoint.load(file.parent), expected)
    with ts.simulate(3):
        model = sharded(mesh_of(3), Shard(1))
        checkpoint.load(file.parent, model)
        same(full_state(model), expected)
    # And one file again: the index would be found instead.
    checkpoint.merge(path, file, prefix="model.", max_file_bytes=total)
    assert not (file.parent / names[-1]).exists()
    same(checkpoint.load(file), expected)
    with pytest.raises(ValueError, match="ends in .safetensors"):
        checkpoint.merge(path, tmp_path / "x.bin", max_file_bytes=1)
    with pytest.raises(ValueError, match="max_file_bytes"):
        checkpoint.merge(path, file, max_file_bytes=-1)


def test_the_safetensors_package_reads_them(saved):
    safetensors = pytest.importorskip("safetensors.torch")
    path, expected, tmp_path = saved
    rows = [
        safetensors.load_file(os.path.join(path, f"data_{r:04}.safetensors"))
        for r in range(RANKS)
    ]
    tables = [r["model.table.weight"] for r in rows if "model.table.weight" in r]
    assert torch.equal(torch.cat(tables), expected["table.weight"])
    safetensors.save_file(expected, tmp_path / "model.safetensors")
    same(checkpoint.load(tmp_path / "model.safetensors"), expected)


@pytest.mark.parametrize("max_file_bytes", [0, 10_000])
def test_transformers_reads_what_is_merged(tmp_path, max_file_bytes):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config)
    expected = {name: t.clone() for name, t in model.state_dict().items()}
    with ts.simulate(RANKS):
        mesh = mesh_of(RANKS)
        ts.distribute_(model.model.embed_tokens.weight, mesh, [Shard(0)])
        ts.distribute_(model.lm_head.weight, mesh, [Shard(1)])
        ts.distribute_module(model, mesh)
        path = checkpoint.save(tmp_path / "run", {"model": model})
    export = tmp_path / "export"
    export.mkdir()
    files = checkpoint.merge(
        path,
        export / "model.safetensors",
        prefix="model.",
        max_file_bytes=max_file_bytes,
    )
    assert (len(files) > 2) == (max_file_bytes > 0)
    config.save_pretrained(export)
    read, report = transformers.LlamaForCausalLM.from_pretrained(
        export, output_loading_info=True
    )
    assert not any(report.values()), report
    same(dict(read.state_dict()), expected)
    # And theirs, in several files, straight into shards.
    theirs = tmp_path / "theirs"
    read.save_pretrained(theirs, max_shard_size="10KB")
    assert (theirs / "model.safetensors.index.json").exists()
    with ts.simulate(RANKS):
        model = transformers.LlamaForCausalLM(config)
        ts.distribute_(
            model.model.embed_tokens.weight, mesh_of(RANKS), [Shard(1)]
        )
        ts.distribute_module(model, mesh_of(RANKS))
        checkpoint.load(theirs, model)
        same(full_state(model), expected)


def write_safetensors(path, tensors):
    """As any other program would."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_hugging_face_models(tmp_path):
    expected = Model().state_dict()
    names = list(expected)
    parts = {"model-00001-of-00002": names[:2], "model-00002-of-00002": names[2:]}
    weight_map = {}
    for part, held in parts.items():
        file = f"{part}.safetensors"
        write_safetensors(tmp_path / file, {n: expected[n] for n in held})
        weight_map.update(dict.fromkeys(held, file))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    with ts.simulate(RANKS):
        model = sharded(mesh_of(), Shard(0))
        checkpoint.load(tmp_path, model)
        same(full_state(model), expected)
    index.write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))
    with pytest.raises(RuntimeError, match="outside its directory"):
        checkpoint.load(tmp_path)


def test_files_of_torch(tmp_path):
    expected = Model().state_dict()
    torch.save({"model": expected}, tmp_path / "model.pt")
    with ts.simulate(RANKS):
        model = sharded(mesh_of(), Shard(0))
        checkpoint.load(tmp_path / "model.pt", {"model": model})
        same(full_state(model), expected)
    assert "model.table.weight" in checkpoint.load(tmp_path / "model.pt")


def test_checkpoints_of_dcp(tmp_path):
    import torch.distributed.checkpoint as dcp

    expected = Model().state_dict()
    dcp.save({"model": expected}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    with ts.simulate(RANKS):
        model = sharded(mesh_of(), Shard(1))
        checkpoint.load(tmp_path / "dcp", {"model": model})
        same(full_state(model), expected)


def test_extra_state_and_strictness(tmp_path):
    class Extra(nn.Linear):
        extra = 1

        def get_extra_state(self):
            return {"extra": self.extra}

        def set_extra_state(self, state):
            self.extra = state["extra"]

    model = nn.Sequential(Extra(2, 2))
    model[0].extra = 5
    path = checkpoint.save(tmp_path, model)
    again = nn.Sequential(Extra(2, 2))
    checkpoint.load(path, again)
    assert again[0].extra == 5
    larger = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="does not hold '1.bias'"):
        checkpoint.load(path, larger)
    checkpoint.load(path, larger, strict=False)
    assert torch.equal(larger[0].weight, model[0].weight)
    smaller = nn.Sequential(nn.Linear(2, 2, bias=False))
    with pytest.raises(ValueError, match="holds '0.bias'"):
        checkpoint.load(path, smaller)


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(TypeError, match="'x' holds a object"):
        checkpoint.save(tmp_path, {"x": object()})
    with pytest.raises(TypeError, match="expected a module or a dict, got int"):
        checkpoint.save(tmp_path, 3)
    with pytest.raises(TypeError, match="expected names as keys, got 1"):
        checkpoint.save(tmp_path, {1: 2})
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="that no module beside it has"):
        checkpoint.save(tmp_path, {"optimizer": optimizer})
    with pytest.raises(ValueError, match="there is nothing at"):
        checkpoint.load(tmp_path / "nothing")

def trained(model, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.arange(4) + step).square().mean().backward()
        optimizer.step()


def plain_state(seed, rate):
    torch.manual_seed(seed)
    model = Model().eval()
    optimizer = torch.optim.Adam(
        [{"params": model.linear.parameters()},
         {"params": model.table.parameters(), "lr": 2 * rate}],
        lr=rate,
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "epoch": seed,
    }


def write_torch(path, state):
    torch.save(state, path)


def write_dcp(path, state):
    import torch.distributed.checkpoint as dcp

    dcp.save(state, checkpoint_id=path, no_dist=True)


@pytest.mark.parametrize("write", [write_torch, write_dcp])
@pytest.mark.parametrize("steps", [0, 2])
def test_optimizers_of_torch(tmp_path, write, steps):
    """What torch numbers is found by name, with rates, schedule and epoch."""
    state = plain_state(1, 0.5)
    trained(state["model"], state["optimizer"], steps)
    state["scheduler"].step()
    held = {
        key: value.state_dict() if hasattr(value, "state_dict") else value
        for key, value in state.items()
    }
    write(tmp_path / "all", held)
    again = plain_state(2, 0.1)
    trained(again["model"], again["optimizer"], 1)
    checkpoint.load(tmp_path / "all", again)
    assert again["epoch"] == 1
    assert again["scheduler"].last_epoch == 1
    rates = [group["lr"] for group in again["optimizer"].param_groups]
    assert rates == [0.05, 0.1]
    moments = {
        name: state["optimizer"].state[parameter].get("exp_avg")
        for name, parameter in state["model"].named_parameters()
    }
    with ts.simulate(RANKS):
        model = sharded(mesh_of(), Shard(0))
        optimizer = torch.optim.Adam(
            [*model.linear.parameters(), *model.table.parameters()]
        )
        checkpoint.load(
            tmp_path / "all", {"model": model, "optimizer": optimizer}
        )
        for name, parameter in model.named_parameters():
            found = optimizer.state.get(parameter, {}).get("exp_avg")
            assert (found is None) == (steps == 0)
            assert steps == 0 or torch.equal(whole(found), moments[name])
    for one in (state, again):
        trained(one["model"], one["optimizer"], 3)
    same(again["model"].state_dict(), state["model"].state_dict())


def test_optimizers_of_other_models(tmp_path):
    state = plain_state(1, 0.5)
    trained(state["model"], state["optimizer"], 1)
    other = nn.Linear(2, 2, bias=False)
    torch.save(
        {"model": other.state_dict(),
         "optimizer": state["optimizer"].state_dict()},
        tmp_path / "all",
    )
    optimizer = torch.optim.Adam(other.parameters())
    with pytest.raises(ValueError, match="of 3 parameters for 'optimizer'"):
        checkpoint.load(
            tmp_path / "all", {"model": other, "optimizer": optimizer}
        )


def test_what_was_not_saved(tmp_path):
    """Strict: nothing stays as it is without a word."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    path = checkpoint.save(tmp_path, {"model": model})
    for more in ({"epoch": 7}, {"optimizer": optimizer}, {"x": torch.ones(1)}):
        state = {"model": model, **more}
        with pytest.raises(ValueError, match=f"not hold '{next(iter(more))}'"):
            checkpoint.load(path, state)
        with pytest.raises(ValueError, match=f"not hold '{next(iter(more))}'"):
            checkpoint.load_latest(tmp_path, state)
        checkpoint.load(path, state, strict=False)
    assert state.keys() == {"model", "x"}
    assert len(optimizer.state) == 2


def test_names_that_meet(tmp_path):
    nested = {"a": {"b": torch.zeros(2)}, "a.b": torch.ones(2)}
    with pytest.raises(ValueError, match="two entries are called 'a.b'"):
        checkpoint.save(tmp_path, nested)


def test_named_tuples(tmp_path):
    class Pair(NamedTuple):
        tensor: torch.Tensor
        number: int

    path = checkpoint.save(tmp_path, {"pair": Pair(torch.ones(2), 3)})
    state = {"pair": Pair(torch.zeros(2), 0)}
    checkpoint.load(path, state)
    assert state["pair"].number == 3
    assert state["pair"].tensor.tolist() == [1, 1]

