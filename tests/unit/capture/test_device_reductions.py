"""Exact reductions and raw tensors that come from a device: of every dtype, the same numbers as on the host."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import watchglass
from devices.device_cases import DTYPES, values
from devices.fake_device import FakeDevice, OnDevice, move
from watchglass import open_run
from watchglass.capture.pytorch.saving import reduce
from watchglass.records import Reduction
from watchglass.stats import DTYPE_CODES, exact_reduction, numbers

#: The dtypes that the kernel knows, and some that neither it nor NumPy does.
ALL = [*DTYPES, "complex32", *(["float8_e8m0fnu"] if hasattr(torch, "float8_e8m0fnu") else [])]

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")


def tensor_of(dtype: str) -> torch.Tensor:
    """Few elements, so that their product fits; an odd number of them, and one that is not finite where there are."""
    if dtype == "complex32":
        return values("complex64", 35).to(torch.complex32)
    if dtype == "float8_e8m0fnu":
        return torch.arange(120, 135, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    tensor = values(dtype, 35)
    if tensor.is_floating_point():
        tensor = torch.cat([tensor, torch.tensor([float("nan")]).to(tensor.dtype)])
    return tensor


def exact(tensor: torch.Tensor, reduction: Reduction) -> Any:
    taken = reduce.PyTorchArrays().take(tensor)
    return taken.computed(lambda elements: exact_reduction(elements, reduction))


def expected(tensor: torch.Tensor, reduction: Reduction) -> float:
    """By NumPy in float64, from the bits."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPE_CODES:
        wide = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
        return exact_reduction(wide.numpy(), reduction)
    bits = {1: torch.uint8, 2: torch.uint16}.get(tensor.itemsize)
    known = name == "bfloat16" or name.startswith("float8")
    array = tensor.view(bits).numpy() if known and bits is not None else tensor.numpy()
    values = numbers(array, DTYPE_CODES[name]) if known else array
    found = np.abs(values.astype(np.complex128)) if tensor.is_complex() else values.astype(np.float64)
    finite = found[np.isfinite(found)]
    with np.errstate(all="ignore"):
        return float(
            {
                Reduction.MEDIAN: np.median, Reduction.PROD: np.prod,
                Reduction.ABS_MEDIAN: lambda x: np.median(np.abs(x)), Reduction.ABS_MIN: lambda x: np.abs(x).min(),
            }[reduction](finite)  # type: ignore[operator]
        )  # fmt: skip


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("reduction", list(Reduction))
def test_a_reduction_from_a_device_is_that_of_the_host(dtype: str, reduction: Reduction) -> None:
    tensor = tensor_of(dtype)
    waited: list[str] = []
    with FakeDevice(waited.append):
        later = exact(OnDevice(tensor), reduction)
    assert waited == []
    here = exact(tensor, reduction)
    np.testing.assert_equal(later.resolve(), here)
    assert here == pytest.approx(expected(tensor, reduction), rel=1e-12)
    # What is not widened on its way is no larger than the tensor.
    assert later.nbytes == tensor.nbytes * (2 if dtype == "complex32" else 4 if dtype == "float8_e8m0fnu" else 1)


@pytest.mark.parametrize("dtype", ALL)
def test_a_tensor_comes_whole_from_a_device(dtype: str) -> None:
    tensor = tensor_of(dtype)[:32].view(4, 8).t() if dtype != "float8_e8m0fnu" else tensor_of(dtype)[:12].view(3, 4).t()
    waited: list[str] = []
    with FakeDevice(waited.append):
        kept = reduce.PyTorchArrays().take(OnDevice(tensor))
    assert waited == []
    here = reduce.PyTorchArrays().take(tensor)
    there: Any = kept.array
    assert kept.dtype == here.dtype
    array = there.resolve()
    assert array.dtype == here.array.dtype
    assert array.shape == here.array.shape == tensor.shape
    assert array.tobytes() == here.array.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float32"])
def test_of_nothing_finite_there_is_no_median(dtype: str) -> None:
    tensor = torch.full((3,), float("nan")).to(getattr(torch, dtype))
    with FakeDevice(lambda name: None):
        later = exact(OnDevice(tensor), Reduction.MEDIAN)
    assert math.isnan(later.resolve())


def test_what_memory_holds_with_another_sign_is_read_with_its_own() -> None:
    numbers = torch.complex(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])).conj()
    assert numbers.imag.is_neg()
    values = reduce.plain(numbers.imag)
    assert values is not None
    assert reduce.summaries([values])[0][0][5:8].tolist() == [-5, -3, -8]
    assert exact(values, Reduction.MEDIAN) == -4
    whole = reduce.plain(numbers)
    assert whole is not None
    assert reduce.PyTorchArrays().take(whole).received().tolist() == [1 - 3j, 2 - 5j]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2fnuz"])
def test_units_of_narrow_outputs(dtype: str) -> None:
    outputs = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, -2.0]]).to(getattr(torch, dtype))
    assert reduce.PyTorchArrays().units(outputs, 1, None).tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_training_on_a_device_is_recorded_to_its_end(tmp_path: Path, dtype: torch.dtype) -> None:
    """The recorder's thread, which the numbers are received on, would end with everything that it has to write."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    with FakeDevice(lambda name: None):
        move(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = {"save_raw": True, "reductions": ["median", "prod", "abs_min"]}
        collections = dict.fromkeys(("weights", "biases", "gradients", "outputs"), kept)
        with watchglass.watch(model, run=tmp_path / "run", save_interval=1, collections=collections, strict=True):
            for _ in range(4):
                optimizer.zero_grad()
                model(OnDevice(torch.randn(5, 6).to(dtype))).float().square().mean().backward()
                optimizer.step()
    run = open_run(tmp_path / "run")
    for name in ("0.weight", "2.bias", "gradient/0.weight", "0.output"):
        tensor = run.tensor(name)
        assert tensor.steps() == [0, 1, 2, 3], name
        for step in tensor.steps():
            value = np.asarray(tensor.value(step), np.float64)
            assert tensor.reduction(step, "median") == pytest.approx(float(np.median(value)), rel=1e-12)
            assert tensor.reduction(step, "abs_min") == pytest.approx(float(np.abs(value).min()), rel=1e-12)
