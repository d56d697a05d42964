"""Under torch's own test base for DTensor, whose mesh is torch's."""

import copy

import torch
from processes import forkserver
from torch import nn
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorTestBase,
    with_comms,
)

import tessera as ts
from tessera import DTensor, Replicate, Shard
from tessera.debug import CommDebugMode


class ModulesTest(DTensorTestBase):
    world_size = 4
    device_type = "cpu"

    @property
    def backend(self):
        return "gloo"

    def _spawn_processes(self):
        # torch's are new interpreters; an import of torch takes seconds.
        self._start_processes(forkserver().Process)

    @with_comms
    def test_linear(self):
        mesh = self.build_device_mesh()
        torch.manual_seed(2)
        plain = nn.Linear(6, 4)
        model = ts.distribute_module(copy.deepcopy(plain), mesh)
        x = torch.randn(8, 6)
        y = model(ts.distribute_tensor(x, mesh, [Shard(0)]))
        self.assertIsInstance(y, DTensor)
        self.assertEqual(y.full_tensor(), plain(x))
        with CommDebugMode() as comm:
            y.square().sum().backward()
        plain(x).square().sum().backward()
        self.assertEqual(model.weight.grad.placements, (Replicate(),))
        self.assertEqual(model.weight.grad.full_tensor(), plain.weight.grad)
        # One for the weight, one for the bias.
        self.assertEqual(
            comm.get_comm_counts(), {torch.ops.c10d_functional.all_reduce: 2}
        )

    @with_comms
    def test_embedding(self):
        mesh = self.build_device_mesh()
        for placement in (Shard(0), Shard(1)):
            torch.manual_seed(2)
            plain = nn.Embedding(10, 8)
            table = ts.distribute_module(
                copy.deepcopy(plain),
                mesh,
                lambda name, module, mesh: module.register_parameter(
                    "weight",
                    nn.Parameter(
                        ts.distribute_tensor(module.weight, mesh, [placement])
                    ),
                ),
            )
            ids = torch.randint(0, 10, (4, 3))
            rows = table(ts.distribute_tensor(ids, mesh, [Replicate()]))
            self.assertEqual(rows.full_tensor(), plain(ids))
            rows.sum().backward()
            plain(ids).sum().backward()
            self.assertEqual(table.weight.grad.placements, (placement,))
            self.assertEqual(
                table.weight.grad.full_tensor(), plain.weight.grad
            )

    def train(self, plain, model, mesh, batches, placement):
        """A step for each batch; the parameters equal one device's."""
        optimizers = [
            torch.optim.AdamW(m.parameters(), lr=0.05) for m in (plain, model)
        ]
        for batch in batches:
            plain(batch).square().sum().backward()
            model(
                ts.distribute_tensor(batch, mesh, [placement])
            ).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for ours, theirs in zip(model.parameters(), plain.parameters()):
            self.assertIsInstance(ours, DTensor)
            self.assertEqual(ours.detach().full_tensor(), theirs.detach())

    @with_comms
    def test_training(self):
        mesh = self.build_device_mesh()
        torch.manual_seed(2)
        plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        model = ts.distribute_module(copy.deepcopy(plain), mesh)
        batches = [torch.randn(8, 6) for _ in range(3)]
        self.train(plain, model, mesh, batches, Shard(0))
        for placement in (Shard(0), Shard(1)):
            for mode in ("sum", "mean", "max"):
                plain = nn.EmbeddingBag(10, 8, mode=mode)
                model = ts.distribute_module(
                    copy.deepcopy(plain),
                    mesh,
                    lambda name, module, mesh: ts.distribute_(
                        module.weight, mesh, [placement]
                    ),
                )
                batches = [torch.randint(0, 10, (4, 3)) for _ in range(3)]
                self.train(plain, model, mesh, batches, Replicate())


if __name__ == "__main__":
    run_tests()
