"""Raw tensors are held until they are written, and no longer."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import watchglass
from train_twice import train
from waiting import until
from watchglass import open_run
from watchglass.record import CapturedRecords
from watchglass.records import RAW

pytestmark = pytest.mark.own_process


def held() -> int:
    """Raw tensors that steps hold."""
    gc.collect()
    return sum(len(found.rows.get(RAW, ())) for found in gc.get_objects() if type(found) is CapturedRecords)


def test_raw_tensors_go_once_they_are_written(tmp_path: Path) -> None:
    model = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    settings: dict[str, Any] = {"collections": ["weights"], "save_raw": True, "save_interval": 20}
    with watchglass.watch(model, run=tmp_path / "run", strict=True, flush_interval_s=0.05, **settings) as hook:
        for number in range(45):  # the last ones on the fast path
            train(model, optimizer, number)

        def all_written() -> bool:
            hook.flush()
            return held() == 0

        until(all_written, pause_s=0.05)
    assert open_run(tmp_path / "run").tensor("weight").value(40).shape == (4, 12)
