"""Counting communication and looking at layouts."""

import pytest
import torch
import torch.nn.functional as F
from both_worlds import in_both_worlds
from processes import RANKS

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
                for record in comm.get_records():
                    line = f"{record.count} {record.collective} of {record.op}"
                    assert line in text, (line, text)
                assert ("sends nothing" in text) == (not comm.get_records())


def body_modules(here):
    mesh = ts.init_device_mesh("cpu", (RANKS,))
    model = ts.distribute_module(torch.nn.Linear(4, 3), mesh)
    x = ts.distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    text = explain(model, x)
    assert text.startswith("Linear runs") and "aten.addmm.default" in text
    before = model.weight
    assert model.weight is before and model(x).placements == (Shard(0),)


test_simulated, test_processes = in_both_worlds(
    body_explain_is_about_what_runs, body_modules
)
