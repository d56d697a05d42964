"""Counting communication and looking at layouts."""

import collections

import pytest
import torch
import torch.nn.functional as F
from both_worlds import in_both_worlds
from processes import RANKS
from torch.utils.checkpoint import checkpoint

import tessera as ts
from tessera import Replicate, Shard
from tessera.debug import (
    CommDebugMode,
    explain,
    sharding_svg,
    sharding_text,
    visualize_sharding,
)

functional = torch.ops.c10d_functional


def test_counts_are_keyed_as_torchs(mesh):
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    with CommDebugMode() as comm:
        x.full_tensor()
        assert comm.get_total_counts() == 1
        x.redistribute(mesh, [Shard(1)])
        x.sum().full_tensor()
    x.full_tensor()
    assert comm.get_comm_counts() == {
        functional.all_gather_into_tensor: 1,
        functional.all_to_all_single: 1,
        functional.all_reduce: 1,
    }
    assert comm.get_total_counts() == 3
    assert comm.get_comm_counts()[functional.reduce_scatter_tensor] == 0
    assert comm.get_comm_bytes()[functional.all_gather_into_tensor] == 96
    assert comm.get_total_bytes() > 96
    assert "all_gather" in comm.generate_comm_debug_tracing_table()


def test_scopes_nest_and_are_used_again(mesh):
    x = ts.distribute_tensor(torch.randn(8), mesh, [Shard(0)])
    with CommDebugMode() as outer:
        x.full_tensor()
        with CommDebugMode() as inner:
            x.full_tensor()
    assert (outer.get_total_counts(), inner.get_total_counts()) == (2, 1)
    with inner:
        pass
    assert inner.get_total_counts() == 0


def test_backward_is_told_apart(mesh):
    w = ts.distribute_tensor(torch.randn(4, 4), mesh).requires_grad_()
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    with CommDebugMode() as comm:
        (x @ w).sum().full_tensor().backward()
    assert {record.backward for record in comm.get_records()} == {False, True}


def test_scatter_and_broadcast(mesh):
    with CommDebugMode() as comm:
        ts.distribute_tensor(torch.randn(8), mesh, [Shard(0)])
        ts.distribute_tensor(torch.randn(8), mesh, [Replicate()])
    assert comm.get_comm_counts() == {
        torch.ops.c10d.scatter_: 1,
        torch.ops.c10d.broadcast_: 1,
    }


def test_pictures(mesh, capsys):
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    visualize_sharding(x, header="x:")
    printed = capsys.readouterr().out
    assert printed == "x:\n" + sharding_text(x) + "\n"
    assert "3" in sharding_text(x)
    assert sharding_svg(x).lstrip().startswith("<")


def test_explain(mesh):
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    w = ts.distribute_tensor(torch.randn(4, 4), mesh)
    text = explain("aten::mm", x, w)
    assert "S(0)" in text and "mm" in text


def test_explain_takes_ops_and_functions(mesh):
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    w = ts.distribute_tensor(torch.randn(4, 4), mesh)
    named = explain("aten::mm", x, w)
    assert explain(torch.ops.aten.mm.default, x, w) == named
    assert explain(torch.ops.aten.mm, x, w) == named
    assert named in explain(torch.mm, x, w)
    assert "mm runs 1 op by rows and sends nothing" in explain(torch.mm, x, w)
    assert named in explain(lambda a, b: (a @ b).relu(), x, w)
    assert "aten.cat.default" in explain(torch.cat, [x, x], dim=1)
    assert "aten.cat.default" in explain("aten::cat", [x, x], 1)
    for wrong in (3, None):
        with pytest.raises(TypeError, match="the name of an op"):
            explain(wrong, x)
    with pytest.raises(TypeError, match="in order"):
        explain("aten::mm", x, mat2=w)
    with pytest.raises(ValueError, match="is distributed"):
        explain(torch.mm, torch.randn(2, 2), torch.randn(2, 2))


def body_explain_is_about_what_runs(here):
    """The collectives that are named are those of the call."""
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    uneven = torch.randn(9, 4)
    spread = {
        placement: ts.distribute_tensor(uneven, mesh, [placement])
        for placement in (Shard(0), Shard(1), Replicate())
    }
    calls = [
        (F.mse_loss, {}),
        (F.l1_loss, {"reduction": "sum"}),
        (F.smooth_l1_loss, {}),
        (torch.add, {}),
        (lambda a, b: a.mean() + b.var(), {}),
        (lambda a, b: F.layer_norm(a, (4,)) @ b.t(), {}),
        (lambda a, b: torch.softmax(a, 0).sum(), {}),
    ]
    for call, options in calls:
        for a in spread.values():
            for b in spread.values():
                with CommDebugMode() as comm:
                    text = explain(call, a, b, **options)
                assert comm.get_total_counts() == 0
                with CommDebugMode() as comm:
                    call(a, b, **options)
                sent = collections.Counter()
                for record in comm.get_records():
                    sent[f"{record.collective} of {record.op}"] += record.count
                for what, count in sent.items():
                    assert f"{count} {what}" in text, (count, what, text)
                assert ("sends nothing" in text) == (not comm.get_records())


def body_modules(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    model = ts.distribute_module(torch.nn.Linear(4, 3), mesh)
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    text = explain(model, x)
    assert text.startswith("Linear runs") and "aten.addmm.default" in text
    before = model.weight
    assert model.weight is before and model(x).placements == (Shard(0),)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def tensor_parallel(name, module, mesh):
    if name.endswith("up"):
        ts.distribute_(module.weight, mesh, [Shard(0)])
        ts.distribute_(module.bias, mesh, [Shard(0)])
    elif name.endswith("down"):
        ts.distribute_(module.weight, mesh, [Shard(1)])


def records_of(comm, **wanted):
    return [
        record
        for record in comm.get_records()
        if all(getattr(record, key) == value for key, value in wanted.items())
    ]


def body_why_there_was_a_collective(here):
    """Op, module, pass and layouts answer it."""
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    model = ts.distribute_module(Net(), mesh, tensor_parallel)
    x = ts.distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)])
    with CommDebugMode() as comm:
        loss = model(x).square().sum()
        loss.backward()
    modules = {record.module for record in comm.get_records()}
    assert {"Net.blocks.0.up", "Net.blocks.1.up"} <= modules, modules
    for record in comm.get_records():
        assert record.arguments.startswith("Float["), record
    # The batch is gathered for the first layer, because the weight is sharded.
    (gathered, *_) = records_of(comm, module="Net.blocks.0.up", backward=False)
    assert gathered.op == "aten::addmm"
    assert "Float[4, 8] on [S(0)]" in gathered.arguments
    # A loss that is computed outside of all modules.
    (reduced,) = records_of(comm, op="aten::pow.Tensor_Scalar", backward=False)
    assert (reduced.module, reduced.collective) == ("", "reduce_scatter")
    assert reduced.arguments == "Float[4, 8] on [P(sum)]"
    # In the backward pass, modules and parameters are known too.
    backward = {record.module for record in records_of(comm, backward=True)}
    assert any(name.startswith("Net.blocks.") for name in backward), backward
    table = comm.generate_comm_debug_tracing_table()
    assert "Net.blocks.0.up" in table and "Float[4, 8] on [S(0)]" in table


class CheckpointedNet(torch.nn.Module):
    """Net with activation checkpointing: of each block, or of its layers."""

    def __init__(self, net, *, whole_blocks, use_reentrant):
        super().__init__()
        self.blocks = net.blocks
        self.whole_blocks = whole_blocks
        self.use_reentrant = use_reentrant

    def forward(self, x):
        for block in self.blocks:
            run = block if self.whole_blocks else block.forward
            x = checkpoint(run, x, use_reentrant=self.use_reentrant)
        return x


def body_modules_that_are_checkpointed(here):
    """What is run again in the backward pass is of the same modules."""
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    net = ts.distribute_module(Net(), mesh, tensor_parallel)

    def modules_of(model):
        x = ts.distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)])
        x.requires_grad_()
        with CommDebugMode() as comm:
            model(x).square().sum().backward()
        return [
            {
                record.module.partition(".")[2]
                for record in records_of(comm, backward=backward)
            }
            for backward in (False, True)
        ]

    forward, _ = modules_of(net)
    names = {name for name, _ in net.named_modules()}
    names |= {name for name, _ in net.named_parameters()}
    for whole_blocks in (True, False):
        for use_reentrant in (True, False):
            model = CheckpointedNet(
                net, whole_blocks=whole_blocks, use_reentrant=use_reentrant
            )
            again = modules_of(model)
            assert again[0] == forward, again
            assert forward - {""} <= again[1] <= names, again
    # Another model afterwards has its own names.
    (outside, _) = modules_of(net.blocks[0])
    assert outside <= {"", "up", "down"}, outside


def body_modules_that_raise_or_are_left_inside(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    x = ts.distribute_tensor(torch.randn(8), mesh, [Shard(0)])

    class Raises(torch.nn.Module):
        def forward(self, x):
            raise KeyError("on purpose")

    with CommDebugMode() as comm:
        with pytest.raises(KeyError):
            Raises()(x)
        x.full_tensor()
    assert [record.module for record in comm.get_records()] == [""]

    class Leaves(torch.nn.Module):
        def forward(self, x):
            mode.__exit__(None, None, None)
            return x

    mode = CommDebugMode()
    mode.__enter__()
    Leaves()(x)
    with CommDebugMode() as comm:
        x.full_tensor()
    assert [record.module for record in comm.get_records()] == [""]


def body_bytes_by_rank(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    table = ts.distribute_tensor(torch.randn(100, 4), mesh, [Shard(0)])
    # All ids are in rank 2's rows.
    ids = ts.distribute_tensor(torch.full((400,), 60), mesh, [Shard(0)])
    with ts.EmbeddingScope(strategy="exchange"):
        with CommDebugMode() as comm:
            F.embedding(ids, table)
    sent = comm.get_comm_bytes_by_rank()
    assert sorted(sent) == here
    assert sent[here[0]] == comm.get_total_bytes()
    if len(here) == RANKS:
        assert max(sent, key=sent.get) == 2, sent


def body_who_holds_a_row(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    table = ts.zeros(100_000, 2, device_mesh=mesh, placements=[Shard(0)])
    assert table.owners(77_777) == [3] and table.owners(-1) == [3]
    assert table.owners(0, dim=1) == [0, 1, 2, 3]
    assert table.local_range(0, rank=3) == range(75_000, 100_000)
    assert 77_777 in table.local_range(rank=3)
    if len(here) == 1:
        assert table.local_range() == table.local_range(rank=here[0])
    else:
        with pytest.raises(RuntimeError, match="pass the rank"):
            table.local_range()
    with pytest.raises(IndexError, match="index 100000 is out of range"):
        table.owners(100_000)
    with pytest.raises(ValueError, match="rank 9 is not in"):
        table.local_range(0, 9)
    assert not hasattr(torch.zeros(2), "owners")


test_simulated, test_processes = in_both_worlds(
    body_explain_is_about_what_runs,
    body_modules,
    body_why_there_was_a_collective,
    body_modules_that_are_checkpointed,
    body_modules_that_raise_or_are_left_inside,
    body_bytes_by_rank,
    body_who_holds_a_row,
)
