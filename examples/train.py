import torch
import torch.nn.functional as F

import tessera as ts
from tessera import Shard


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(32, 64)
        self.down = torch.nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


def tensor_parallel(name, module, mesh):
    """Splits `up` by its outputs and `down` by its inputs."""
    if name.endswith("up"):
        ts.distribute_(module.weight, mesh, [Shard(0)])
        ts.distribute_(module.bias, mesh, [Shard(0)])
    elif name.endswith("down"):
        ts.distribute_(module.weight, mesh, [Shard(1)])


with ts.World.from_environment(4) as world:
    mesh = ts.init_device_mesh("cpu", (world.size,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block())
    ts.distribute_module(model, mesh, tensor_parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = ts.distribute_tensor(torch.randn(16, 32), mesh)
    for step in range(3):
        loss = F.mse_loss(model(x), x.flip(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()  # on every rank: it communicates
        if world.rank == 0:
            print(f"step {step} loss {value:.4f}")
    if world.rank == 0:
        print(world.size, "ranks,", model[0].up.weight.placements)
