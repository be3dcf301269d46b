"""Facts about batches that worker processes of a data loader make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from facts_of import batch, classifier, facts, watching
from torch_hooks import pre_hooks


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


class Streams(IterableDataset[Any]):
    """Each worker draws its own samples: the same ones, where it forgets to ask which worker it is."""

    def __init__(self, shared: bool) -> None:
        self.shared = shared

    def __iter__(self) -> Any:
        worker = torch.utils.data.get_worker_info()
        generator = torch.Generator().manual_seed(0 if self.shared or worker is None else worker.id)
        for _ in range(64):
            inputs = torch.randn(6, generator=generator)
            yield inputs, int(inputs[:3].argmax())


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("model_known", [True, False])
def test_workers_that_give_the_same_batches_are_reported(run_path: Path, shared: bool, model_known: bool) -> None:
    model = classifier()
    with watching(model, run_path, save_interval=64):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(Streams(shared), batch_size=16, num_workers=2, multiprocessing_context="fork")
        batches = list(loader) if model_known else []
        for inputs, labels in batches or loader:
            step(model, optimizer, inputs, labels)
    opened = [data for data in facts(run_path, "batch") if data.get("loader")]
    assert len(opened) == 1
    assert opened[0]["workers"] == [0, 1]
    assert opened[0]["iteration"] == 1
    assert (opened[0]["hashes"][0] == opened[0]["hashes"][1]) is shared
    assert opened[0]["varied"] > 16
    described = facts(run_path, "data_loader")
    assert described == [
        {
            "loader": "loader", "data_set": "Streams", "iterable": True, "sampler": "_InfiniteConstantSampler",
            "batch_size": 16, "drop_last": False, "num_workers": 2, "in_order": True,
            "persistent_workers": False, "generator": False,
        }
    ]  # fmt: skip


def test_a_validation_loader_opens_no_epoch_of_the_training(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path, save_interval=64):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer, *batch(0))
        loader = DataLoader(Streams(True), batch_size=16, num_workers=2, multiprocessing_context="fork")
        with torch.no_grad():
            for inputs, _ in loader:
                model(inputs)
        for number in range(4):
            step(model, optimizer, *batch(number))
        assert len(pre_hooks(model)) == 1
    assert all("loader" not in data for data in facts(run_path, "batch"))


def test_batches_that_are_no_whole_batches_of_the_loader_have_no_worker(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path, save_interval=64):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(Streams(False), batch_size=16, num_workers=2, multiprocessing_context="fork")
        for inputs, labels in loader:
            for part in (slice(0, 8), slice(8, 16)):
                step(model, optimizer, inputs[part], labels[part])
    assert [data.get("workers") for data in facts(run_path, "batch") if data.get("loader")] == [None]
