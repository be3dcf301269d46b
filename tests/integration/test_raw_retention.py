"""A run keeps its newest raw tensors within a bound; readers of removed ones get an error that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import watchglass
from train_twice import train
from watchglass import open_run
from watchglass.errors import StepNotRecordedError
from watchglass.store import LocalStore, was_removed


def test_the_newest_raw_tensors_are_kept(tmp_path: Path) -> None:
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    settings: dict[str, Any] = {
        "collections": ["weights"], "save_raw": True, "save_interval": 1, "raw_keep_bytes": 1000,
    }  # fmt: skip
    with watchglass.watch(model, run=tmp_path / "run", strict=True, flush_interval_s=0.05, **settings) as hook:
        for number in range(20):
            train(model, optimizer, number)
            hook.flush()
    store = LocalStore(tmp_path / "run")
    kept = store.list("attempts/0000/tensors")
    assert 0 < len(kept) < 20
    weight = open_run(tmp_path / "run").tensor("weight")
    assert weight.value(19).shape == (4, 12)
    with pytest.raises(StepNotRecordedError, match="removed"):
        weight.value(0)
    assert was_removed(store, "attempts/0000/tensors/worker_0-00000000.safetensors")
    assert not was_removed(store, kept[-1].path)
