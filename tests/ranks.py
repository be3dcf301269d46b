"""Training runs by several ranks, each a separate process; importable by the children that multiprocessing starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass

WORLD = 2
#: How long a rank waits for the other one. The limit of PyTorch is half an hour.
_PATIENCE = timedelta(minutes=5)
#: What each rank would take seconds to import: the process that all of them are forked from has done so.
PRELOADED = (
    "torch", "torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.tensor.parallel",
    "torch.nn.parallel", "torch._dynamo", "pyarrow.ipc", "train_twice",
)  # fmt: skip

#: Takes its rank and a function to call with its model. Its result must be the same to the last bit.
Training = Callable[[int, Callable[..., None]], Any]


def run_ranks(training: Training, folder: Path, path: Path | None, **settings: Any) -> list[dict[str, bytes]]:
    """Train with two gloo processes, watched into a run or bare; returns each rank's outcome bit for bit."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOADED))
    arguments = (training, folder, path, settings)
    torch.multiprocessing.start_processes(_rank, arguments, nprocs=WORLD, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def _rank(rank: int, training: Training, folder: Path, path: Path | None, settings: dict[str, Any]) -> None:
    from train_twice import bits

    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD, timeout=_PATIENCE)
    torch.manual_seed(0)
    hooks = []

    def watch(model: nn.Module) -> None:
        if path is not None:
            hooks.append(watchglass.watch(model, run=path, strict=True, **settings))

    result = training(rank, watch)
    for hook in hooks:
        hook.close()
    torch.save(bits(result), folder / f"{rank}.pt")
    more = {key: result[key] for key in ("norms", "whole") if key in result} if isinstance(result, dict) else {}
    torch.save(more, folder / f"{rank}.more.pt")
    # Held until the end: the thread of the group that drops it last would wait for the GIL, which the end of the
    # group holds while it waits for that thread (PyTorch 2.13).
    last = dist.barrier(async_op=True)
    last.wait()
    dist.destroy_process_group()
    # Threads of gloo's abort a process that ends by itself now and then, watched or not: "terminate called without an
    # active exception". What a rank leaves behind is on disk by now.
    os._exit(0)


class Network(nn.Module):
    """Layers whose sizes two ranks cannot divide evenly, unless the test wants even ones."""

    def __init__(self, buffers: bool = True, width: int = 15) -> None:
        super().__init__()
        self.first, self.relu = nn.Linear(12, width), nn.ReLU()
        self.norm: nn.Module = nn.BatchNorm1d(width) if buffers else nn.Identity()
        self.second, self.head = nn.Linear(width, 7), nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(self.norm(self.relu(self.first(x))))))  # type: ignore[no-any-return]


def rows(rank: int, number: int) -> tuple[Tensor, Tensor]:
    """A rank's half of a batch; both together for rank -1."""
    inputs = torch.randn(2 * 8, 12, generator=torch.Generator().manual_seed(number))
    chosen = slice(None) if rank < 0 else slice(8 * rank, 8 * rank + 8)
    return inputs[chosen], inputs[chosen, :1].sin()


def train(model: nn.Module, optimizer: Any, rank: int, steps: int = 12) -> list[float]:
    losses = []
    for number in range(steps):
        inputs, targets = rows(rank, number)
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def alone(rank: int, watch: Callable[..., None]) -> Any:
    """What the ranks do together, done by one process; also called by the tests themselves."""
    torch.manual_seed(0)
    model = Network(buffers=False)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    watch(model)
    return train(model, optimizer, -1), model, optimizer


def data_parallel(rank: int, watch: Callable[..., None]) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(Network(buffers=False))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    watch(model)
    return train(model, optimizer, rank), model.module, optimizer


def data_parallel_in_buckets(rank: int, watch: Callable[..., None]) -> Any:
    """Gradients are views of buckets, and statistics of batches are broadcast."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(Network(), gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    watch(model)
    return train(model, optimizer, rank), model.module, optimizer


def accumulating(rank: int, watch: Callable[..., None]) -> Any:
    """Three micro-batches a step, of which only the last one is all-reduced; the gradients as they were then."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(Network(buffers=False))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    watch(model)
    norms = []
    for number in range(0, 36, 3):
        optimizer.zero_grad()
        with model.no_sync():
            for part in (0, 1):
                inputs, targets = rows(rank, number + part)
                (F.mse_loss(model(inputs), targets) / 3).backward()
        inputs, targets = rows(rank, number + 2)
        (F.mse_loss(model(inputs), targets) / 3).backward()
        norms.append(float(model.module.first.weight.grad.double().norm()))
        optimizer.step()
    return {"norms": norms, "model": model.module, "optimizer": optimizer}


def sharded_optimizer(rank: int, watch: Callable[..., None]) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(Network(buffers=False))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    watch(model)
    return train(model, optimizer, rank), model.module


def fully_sharded(rank: int, watch: Callable[..., None]) -> Any:
    """Two layers by themselves, then the rest."""
    from torch.distributed.fsdp import fully_shard

    model = Network(buffers=False)
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    for layer in (model.first, model.second, model):
        fully_shard(layer, mesh=mesh)
    watch(model)
    return _whole(model, rank)


def tensor_parallel(rank: int, watch: Callable[..., None]) -> Any:
    """One layer split by columns, the next by rows; all ranks have the same data."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Network(buffers=False, width=16)
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    model = parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    watch(model)
    return _whole(model, -1)


def _whole(model: nn.Module, rank: int) -> dict[str, Any]:
    """Train, and keep the whole tensors of each step: weights and gradients before its update, the rest after it."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01, foreach=False)
    losses, whole = [], []
    for number in range(12):
        inputs, targets = rows(rank, number)
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        whole.append({
            name: {"weight": _full(parameter), "gradient": _full(parameter.grad)}
            for name, parameter in model.named_parameters()
        })  # fmt: skip
        optimizer.step()
        for name, parameter in model.named_parameters():
            known, state = whole[-1][name], optimizer.state[parameter]
            known["update"] = _full(parameter) - known["weight"]
            known |= {key: _full(state[key]) for key in ("exp_avg", "exp_avg_sq")}
        losses.append(loss.item())
    return {"losses": losses, "whole": whole, "model": model, "optimizer": optimizer}


def _full(tensor: Any) -> Tensor:
    value: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return value.detach().clone()
