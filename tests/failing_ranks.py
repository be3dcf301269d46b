"""Training runs by several ranks that fail on purpose on one of them; importable by the children that are spawned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from failing import Bad, to_nan
from ranks import WORLD, Network, rows

#: The step from which on rank 0 spoils what it computes, late enough for the fast path, and how many there are.
FAILS, STEPS = 14, 17


def _network(width: int = 15) -> Network:
    model = Network(buffers=False, width=width)
    model.norm = Bad(to_nan)
    return model


def _train(model: nn.Module, rank: int, *, together: bool = False) -> list[float]:
    """Rank 0 alone fails, unless the ranks share each forward's values."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=False)
    losses = []
    for number in range(STEPS):
        for module in model.modules():
            if isinstance(module, Bad):
                module.on = number >= FAILS and (together or rank == 0)
        inputs, targets = rows(-1 if together else rank, number)
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def fully_sharded(rank: int, watch: Callable[..., None]) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = _network()
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    for layer in (model.first, model.second, model):
        fully_shard(layer, mesh=mesh)
    watch(model)
    return _train(model, rank), model


def fully_sharded_parts(rank: int, watch: Callable[..., None]) -> Any:
    """The outermost module is not sharded itself."""
    from torch.distributed.fsdp import fully_shard

    model = _network()
    fully_shard(model.second, mesh=dist.init_device_mesh("cpu", (WORLD,)))
    watch(model)
    return _train(model, rank), model


def tensor_parallel(rank: int, watch: Callable[..., None]) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = _network(width=16)
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    model = parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})  # type: ignore[assignment]
    watch(model)
    return _train(model, rank, together=True), model


class Talking(nn.Module):
    """Shares a number with the other ranks inside its forward, as a balancing of experts does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _network()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        scale = x.detach().nan_to_num().abs().mean()
        dist.all_reduce(scale)
        self.calls += 1
        return x / (1 + scale)


def collective_in_the_forward(rank: int, watch: Callable[..., None]) -> Any:
    model = Talking()
    watch(model)
    return _train(model, rank), model.calls, model


def data_parallel(rank: int, watch: Callable[..., None]) -> Any:
    """The one kind that each rank can run by itself."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(_network())
    watch(model)
    return _train(model, rank), model.module
