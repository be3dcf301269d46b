"""Training runs by two ranks with a fault each, or healthy; importable by the children that are started for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ranks import WORLD

STEPS = 24
#: The step at which something happens on rank 1 alone.
HAPPENS = 8


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))


def rows(rank: int, number: int) -> tuple[Tensor, Tensor]:
    """A batch of one rank, and its classes."""
    inputs = torch.randn(16, 12, generator=torch.Generator().manual_seed(WORLD * number + rank))
    return inputs, inputs[:, :4].argmax(1)


def wrapped(fault: str, rank: int, watch: Callable[..., None]) -> Any:
    """With a wrapper. Faults: bypass, no_sync, unfrozen, same_data, changed, wrong_values."""
    from torch.nn.parallel import DistributedDataParallel

    model = network()
    if fault == "unfrozen":
        model[0].requires_grad_(False)
    wrapper = DistributedDataParallel(model)
    model.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(wrapper)
    losses = []
    for step in range(STEPS):
        inputs, labels = rows(0 if fault == "same_data" else rank, step)
        optimizer.zero_grad()
        with wrapper.no_sync() if fault == "no_sync" else contextlib.nullcontext():
            loss = F.cross_entropy((model if fault == "bypass" else wrapper)(inputs), labels)
            if fault == "wrong_values" and rank == 1 and step > 2 * HAPPENS and step % 3 == 2:
                loss = 6 * loss
            loss.backward()
        optimizer.step()
        if fault == "changed" and rank == 1 and step == HAPPENS:
            with torch.no_grad():
                model[2].weight[3, 4] += 0.5
        losses.append(loss.item())
    return losses


def by_hand(fault: str, rank: int, watch: Callable[..., None]) -> Any:
    """Without a wrapper. Faults: forgotten, sum, seed, skip, sum_for_adam. Healthy: divided_loss, local_sgd, parts."""
    torch.manual_seed(rank if fault == "seed" else 0)
    model = network()
    if fault == "parts" and rank == 1:
        nn.init.normal_(model[2].weight)
    make = torch.optim.AdamW if fault == "sum_for_adam" else torch.optim.SGD
    optimizer = make(model.parameters(), lr=0.01)
    watch(model)
    losses = []
    for step in range(STEPS):
        inputs, labels = rows(rank, step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        (loss / WORLD if fault == "divided_loss" else loss).backward()
        for name, parameter in model.named_parameters():
            if fault in ("forgotten", "local_sgd") or (fault == "parts" and name.startswith("2.")):
                continue
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            if fault not in ("sum", "sum_for_adam", "divided_loss"):
                parameter.grad /= WORLD
        if fault == "skip" and rank == 1 and step == HAPPENS:
            continue
        optimizer.step()
        if fault == "local_sgd" and step % 5 == 4:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= WORLD
        losses.append(loss.item())
    return losses
