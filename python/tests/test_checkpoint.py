"""tessera.checkpoint: any layout into any other, by names, in both worlds."""

import json
import os
import shutil
import tempfile
import warnings

import pytest
import torch
import torch.distributed as dist
from both_worlds import in_both_worlds
from processes import RANKS
from torch import nn

import tessera as ts
from tessera import Replicate, Shard, checkpoint


class Directory:
    """A directory of its own, the same on every rank."""

    def __init__(self, here):
        self.leads = 0 in here
        self.alone = len(here) == RANKS
        path = [tempfile.mkdtemp()] if self.leads else [None]
        if not self.alone:
            dist.broadcast_object_list(path, src=0)
        self.path = path[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        if self.leads:
            shutil.rmtree(self.path)

    def wait(self):
        if not self.alone:
            dist.barrier()

    def __truediv__(self, name):
        return os.path.join(self.path, name)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.dropout = nn.Dropout(0.5)
        self.linear = nn.Linear(8, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, ids):
        self.count += 1
        return self.linear(self.dropout(self.table(ids)))


def mesh_of(*shape):
    return ts.init_device_mesh("cpu", shape or (RANKS,))


def sharded(mesh, placement, model=None):
    def shard(name, module, mesh):
        if name in ("table", "linear"):
            ts.distribute_(module.weight, mesh, [placement] * mesh.ndim)

    return ts.distribute_module(model or Model(), mesh, shard)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, ts.DTensor) else tensor


def full_state(model):
    return {k: whole(v).clone() for k, v in model.state_dict().items()}


def same(state, expected):
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(whole(state[key]), whole(value)), key


class Batches:
    """A data loader with a position."""

    def __init__(self):
        self.position = 0

    def next(self, mesh):
        self.position += 1
        ids = (torch.arange(6) + self.position) % 11
        return ts.distribute_tensor(ids, mesh, [Replicate()] * mesh.ndim)

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def make(mesh, placement, kind, seed):
    torch.manual_seed(seed)
    model = sharded(mesh, placement)
    optimizer = kind(model)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.5)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "batches": Batches(),
        "best": 0.0,
    }


def train(state, mesh, steps):
    losses = []
    for _ in range(steps):
        state["optimizer"].zero_grad()
        loss = state["model"](state["batches"].next(mesh)).square().mean()
        loss.backward()
        state["optimizer"].step()
        state["scheduler"].step()
        losses.append(loss.full_tensor().item())
        state["best"] = losses[-1]
    return losses


KINDS = [
    lambda m: torch.optim.AdamW(m.parameters(), lr=0.1, amsgrad=True),
    lambda m: torch.optim.Adam(
        [{"params": m.table.parameters(), "lr": 0.3},
         {"params": m.linear.parameters()}],
        lr=0.1,
        foreach=True,
    ),
    lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    lambda m: torch.optim.Adagrad(m.parameters(), lr=0.1),
]


def body_resumed_losses_are_the_same_bits(here):
    mesh = mesh_of()
    for kind in KINDS:
        with Directory(here) as run:
            state = make(mesh, Shard(0), kind, 1)
            train(state, mesh, 3)
            checkpoint.save(run.path, state, step=3)
            expected = train(state, mesh, 4)
            again = make(mesh, Shard(0), kind, 2)
            found = checkpoint.load_latest(run.path, again)
            assert found.step == 3 and not found.skipped
            assert again["batches"].position == 3
            assert again["best"] != 0.0
            assert train(again, mesh, 4) == expected
            same(again["model"].state_dict(), state["model"].state_dict())
            groups = [o["optimizer"].param_groups for o in (again, state)]
            for group, other in zip(*groups):
                assert group["lr"] == other["lr"]


def body_resumed_on_other_meshes(here):
    mesh, square = mesh_of(), mesh_of(2, 2)
    for kind in KINDS:
        with Directory(here) as run:
            state = make(mesh, Shard(0), kind, 1)
            train(state, mesh, 3)
            checkpoint.save(run.path, state, step=3)
            expected = train(state, mesh, 4)
            again = make(square, Shard(1), kind, 2)
            # It has a state of its own by now.
            train(again, square, 1)
            checkpoint.load_latest(run.path, again)
            torch.testing.assert_close(train(again, square, 4), expected)


def body_maps_of_tensors(here):
    mesh = mesh_of()
    value = torch.randn(7, 5)
    state = {
        "x": ts.distribute_tensor(value, mesh, [Shard(0)]),
        "plain": value.clone(),
        "nested": {"list": [value + 1, 3], "text": "t", "pair": (1, 2.5)},
        "nothing": None,
    }
    with Directory(here) as run:
        path = checkpoint.save(run.path, state, step=5)
        assert path == run / "step_5"
        into = {
            "x": ts.zeros(7, 5, device_mesh=mesh, placements=[Shard(1)]),
            "plain": torch.zeros(7, 5),
            "nested": {"list": [torch.zeros(7, 5), 0], "text": "", "pair": 0},
            "nothing": 1,
        }
        checkpoint.load(path, into)
        assert into["x"].placements == (Shard(1),)
        assert torch.equal(into["x"].full_tensor(), value)
        assert torch.equal(into["plain"], value)
        assert torch.equal(into["nested"]["list"][0], value + 1)
        assert into["nested"]["list"][1] == 3
        assert into["nested"]["text"] == "t"
        assert into["nested"]["pair"] == (1, 2.5)
        assert into["nothing"] is None
        plain = checkpoint.load(path)
        assert torch.equal(plain["x"], value)
        assert not isinstance(plain["x"], ts.DTensor)
        assert list(checkpoint.load(path, names=["plain"])) == ["plain"]
        assert checkpoint.info(path).step == 5
        assert checkpoint.checkpoints_in(run.path) == [path]


def body_damage_is_found_and_left_out(here):
    mesh = mesh_of()
    with Directory(here) as run:
        for step in (1, 2):
            value = torch.full((64, 4), float(step))
            x = ts.distribute_tensor(value, mesh, [Shard(0)])
            checkpoint.save(run.path, {"x": x}, step=step)
        file = run / "step_2/data_0001.safetensors"
        if run.leads:
            with open(file, "r+b") as opened:
                opened.seek(-1, os.SEEK_END)
                opened.write(b"!")
        run.wait()
        into = {"x": ts.zeros(64, 4, device_mesh=mesh)}
        with pytest.raises(RuntimeError, match="data_0001.*tensor 'x'"):
            checkpoint.load(run / "step_2", into)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = checkpoint.load_latest(run.path, into)
        assert found.step == 1
        assert "data_0001" in found.skipped[0]
        assert any("step 2" in str(w.message) for w in caught)
        assert torch.equal(into["x"].full_tensor(), torch.ones(64, 4))


def body_saves_in_the_background(here):
    mesh = mesh_of()
    model = sharded(mesh, Shard(0))
    expected = full_state(model)
    with Directory(here) as run:
        pending = checkpoint.save(
            run.path, {"model": model}, step=1, asynchronous=True
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert pending.wait() == run / "step_1"
        assert pending.done()
        checkpoint.load(run / "step_1", {"model": model})
        same(full_state(model), expected)


def body_state_dicts_both_ways(here):
    """Plain weights into a distributed model and back, by load_state_dict."""
    mesh = mesh_of()
    torch.manual_seed(1)
    plain, model = Model(), sharded(mesh, Shard(0))
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.normal_()
    model.load_state_dict(plain.state_dict())
    assert model.table.weight.placements == (Shard(0),)
    same(full_state(model), plain.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    expected = full_state(model)
    plain.load_state_dict(model.state_dict())
    assert not isinstance(plain.table.weight, ts.DTensor)
    same(plain.state_dict(), expected)


def body_a_rank_that_fails(here):
    """An error of one rank is raised on all."""
    mesh = mesh_of()
    x = ts.zeros(4, 2, device_mesh=mesh, placements=[Shard(0)])
    with Directory(here) as run:
        state = {"x": x}
        if here == [2]:
            state["more"] = x
        if len(here) == RANKS:
            return
        with pytest.raises(ValueError, match="rank 2 saves other tensors"):
            checkpoint.save(run.path, state)
        state = {"x": x, "bad": torch.zeros(2)}
        if here == [1]:
            state["bad"] = torch.zeros(2).to_sparse()
        with pytest.raises(NotImplementedError, match="'bad' .* \\(rank 1\\)"):
            checkpoint.save(run.path, state)
        assert checkpoint.checkpoints_in(run.path) == []


test_simulated, test_processes = in_both_worlds(
    body_resumed_losses_are_the_same_bits,
    body_resumed_on_other_meshes,
    body_maps_of_tensors,
    body_damage_is_found_and_left_out,
    body_saves_in_the_background,
    body_state_dicts_both_ways,
    body_a_rank_that_fails,
)


# ---- one process, files of others ----


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
        same({k.removeprefix("model."): v for k, v in tensors.items()}, expected)


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
