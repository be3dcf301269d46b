"""Memory by category: each tensor once, by device."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from watchglass.capture.pytorch.profiling.operator_windows import held_memory, temporary_memory
from watchglass.records import MemoryTotals


def test_each_tensor_counts_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    model[1].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    held = held_memory([model, model[0]], [optimizer, optimizer])
    sizes = {(row.device, row.category): row.size_bytes for row in held}
    trained = 4 * (16 + 4 + 4)
    assert sizes == {
        ("cpu", "parameters"): trained, ("cpu", "gradients"): trained, ("cpu", "buffers"): 2 * 4 * 4 + 8,
        ("cpu", "optimizer_state"): 2 * trained + 3 * 4,
    }  # fmt: skip


def test_models_of_several_devices() -> None:
    model = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False, device="meta")])
    assert held_memory([model], []) == [
        MemoryTotals("cpu", "parameters", 16),
        MemoryTotals("meta", "parameters", 16),
    ]


def test_the_most_at_a_time_beyond_the_beginning() -> None:
    def events(*moves: tuple[str, int, int]) -> Iterator[Any]:
        for kind, index, size in moves:
            yield SimpleNamespace(
                name=lambda: "[memory]", nbytes=lambda size=size: size, device_index=lambda index=index: index,
                device_type=lambda kind=kind: SimpleNamespace(name=kind),
            )  # fmt: skip
        yield SimpleNamespace(name=lambda: "aten::add")

    found = temporary_memory(
        events(("CPU", -1, -50), ("CPU", -1, 80), ("CUDA", 1, 10), ("CPU", -1, 30), ("CUDA", 0, -5))
    )
    assert found == [MemoryTotals("cpu", "temporary", 60), MemoryTotals("cuda:1", "temporary", 10)]
