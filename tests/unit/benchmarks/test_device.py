"""What of the measurement on a GPU can run without one."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import device
from configurations import ON_DEVICE
from limits import captured
from workloads import Training, large_transformer


def small() -> Training:
    return large_transformer("cpu", layers=1, width=64, sequence=8, vocabulary=32)


def test_the_model_is_large_enough() -> None:
    with torch.device("meta"):
        training = large_transformer("meta")
    assert sum(parameter.numel() for parameter in training.model.parameters()) >= 100_000_000
    assert list(ON_DEVICE.targets) == [device.MODEL]


def test_measures_turns_and_waits_at_their_ends() -> None:
    waits: list[str] = []
    found = device.measure(
        dataclasses.replace(ON_DEVICE),
        half_width=1.0,
        limit_s=0.0,
        progress=lambda _: None,
        make=small,
        wait=lambda: waits.append("wait"),
        waits=lambda watched, bare: ["a complaint"],
    )
    assert found.complaints == ["a complaint"]
    assert len(waits) > 9
    assert found.seen == captured(small(), ("parameters", "gradients", "outputs"))


class Device:
    """Raises where a step waits, while it is told to."""

    def __init__(self) -> None:
        self.modes = ["default"]

    def mode(self, mode: str) -> None:
        self.modes.append(mode)

    def waiting(self) -> None:
        if self.modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation\nand more")


def test_a_watched_step_that_waits_is_complained_of() -> None:
    fake = Device()
    assert device.found_waits(fake.waiting, lambda: None, fake.mode) == [
        "a watched step waits for the device: called a synchronizing CUDA operation"
    ]
    assert fake.modes[-1] == "default"


def test_a_watched_step_that_does_not_wait_is_not() -> None:
    fake = Device()
    assert device.found_waits(lambda: None, lambda: None, fake.mode) == []
    assert fake.modes == ["default", "error", "default"]


def test_nothing_is_said_where_the_bare_training_waits() -> None:
    fake = Device()
    with pytest.raises(RuntimeError, match="synchronizing"):
        device.found_waits(lambda: None, fake.waiting, fake.mode)
    assert fake.modes[-1] == "default"
