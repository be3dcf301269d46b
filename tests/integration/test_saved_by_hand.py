"""Scalars and tensors of PyTorch that a script saves itself: exact on the CPU, and never waited for on a device."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from devices.fake_device import DEVICE, FakeDevice
from watchglass import Hook, Mode, Run, open_run

EVERYTHING: dict[str, Any] = {"save_raw": True, "save_shape": True, "reductions": ["median"]}


def saved(path: Path, value: Tensor, **settings: Any) -> Run:
    with Hook(path, strict=True, **settings) as hook, hook.step("train"):
        hook.save_tensor("mine", value)
    return open_run(path)


@pytest.mark.parametrize(
    ("value", "largest"),
    [
        (torch.tensor([1e300, -2.0], dtype=torch.float64), 1e300),
        (torch.tensor([(1 << 40) + 1, 3]), float((1 << 40) + 1)),
        (torch.tensor([3 + 4j, 0j]), 5.0),
        (torch.tensor([3 + 4j, 0j], dtype=torch.complex128), 5.0),
        (torch.tensor([True, False]), 1.0),
        (torch.tensor([1.5, -2.0], dtype=torch.bfloat16), 1.5),
        (torch.tensor([1.5, -2.0], dtype=torch.float16), 1.5),
        (torch.tensor([1.5, -2.0]).to(torch.float8_e5m2), 1.5),
        (torch.tensor([1.5, -2.0], requires_grad=True), 1.5),
        (torch.tensor([3 + 4j, 0j]).conj(), 5.0),
    ],
    ids=lambda value: str(value.dtype) if isinstance(value, Tensor) else "",
)
def test_a_tensor_of_any_dtype_is_recorded_as_it_is(run_path: Path, value: Tensor, largest: float) -> None:
    tensor = saved(run_path, value, save_raw=True).tensor("mine")
    assert tensor.info.dtype == str(value.dtype).removeprefix("torch.")
    assert tensor.reductions("max")[1][0] == largest
    wide = value.detach().resolve_conj()
    held = tensor.value(0, as_float32=True)
    np.testing.assert_array_equal(held, wide.float().numpy() if held.dtype == np.float32 else wide.numpy())


def test_what_is_saved_is_what_it_was_then(run_path: Path) -> None:
    value = torch.ones(3)
    with Hook(run_path, strict=True, **EVERYTHING) as hook, hook.step("train"):
        hook.save_tensor("mine", value)
        value.zero_()
    assert open_run(run_path).tensor("mine").value(0).tolist() == [1, 1, 1]


def test_nothing_that_is_saved_on_a_device_is_waited_for(tmp_path: Path) -> None:
    waits: list[str] = []
    runs: dict[str, Run] = {}
    for name in ("there", "here"):
        with FakeDevice(waits.append):
            values = torch.arange(6.0).reshape(2, 3).div(7)
            narrow, scalar = values.to(torch.bfloat16), values.sum().double() / 3
            if name == "there":
                values, narrow, scalar = values.to(DEVICE), narrow.to(DEVICE), scalar.to(DEVICE)
            with Hook(tmp_path / name, strict=True, **EVERYTHING) as hook, hook.step("train"):
                hook.save_tensor("mine", values)
                hook.save_tensor("narrow", narrow)
                hook.save_scalar("reward", scalar)
        runs[name] = open_run(tmp_path / name)
    assert waits == []
    for tensor in ("mine", "narrow"):
        there, here = (runs[name].tensor(tensor) for name in ("there", "here"))
        assert there.info == here.info
        for reduction in ("sum", "l2", "max", "median"):
            np.testing.assert_array_equal(there.reductions(reduction), here.reductions(reduction))
        np.testing.assert_array_equal(there.value(0), here.value(0))
    assert list(runs["there"].scalars("reward")[1]) == list(runs["here"].scalars("reward")[1])


def test_what_is_no_number_is_refused_with_one_warning(run_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Hook(run_path, strict=True) as hook, caplog.at_level(logging.WARNING, "watchglass"):
        for _ in range(2):
            with hook.step("train"):
                hook.save_scalar("reward", torch.ones(2))  # type: ignore[arg-type]
                hook.save_tensor("meta", torch.ones(2, device="meta"))
    assert len(caplog.messages) == 2
    assert "'reward' is not recorded: save_scalar needs a number but got tensor([1., 1.])" in caplog.messages[0]
    assert "'meta' is not recorded: save_tensor needs an array of numbers" in caplog.messages[1]


def test_a_manual_evaluation_has_the_mean_loss_of_its_batches(run_path: Path) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = torch.randn(30, 4), torch.randint(0, 3, (30,))
    with watchglass.watch(model, run=run_path, strict=True) as hook:
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        with torch.no_grad(), hook.step("eval"):
            for rows in (slice(0, 20), slice(20, 30)):
                watchglass.save_scalar("before the loss", 1.0)
                F.cross_entropy(model(inputs[rows]), labels[rows])
        with torch.no_grad():
            outputs = model(inputs)
            watchglass.save_scalar("before the loss", 1.0)
            expected = float(F.cross_entropy(outputs, labels))
    at, values = open_run(run_path).scalars("loss", mode=Mode.EVAL)
    assert list(at) == [0, 1]
    np.testing.assert_allclose(values, expected, rtol=1e-6)
