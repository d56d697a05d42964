"""Counting communication and looking at layouts."""

import torch

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
