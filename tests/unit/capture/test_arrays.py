"""Arrays of NumPy, of PyTorch and of a toy with a device of its own: the same numbers, saved in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from watchglass.capture import ArrayInfo, Arrays, Elements, Hook
from watchglass.capture.arrays import NumPyArrays, Read
from watchglass.capture.facts.input_sketches import LIMIT, Sample, hash_of, table_positions
from watchglass.capture.facts.update_samples import SampledParameter, UpdateSamples, settings_of
from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.capture.pytorch.saving.reduce import PyTorchArrays
from watchglass.capture.saving.exact_updates import Updates
from watchglass.capture.saving.parameters import LateGradients, Parameters
from watchglass.capture.saving.saving import Item, Saving
from watchglass.record import CapturedRecords
from watchglass.records import RAW, REDUCTIONS, STATISTICS, Role
from watchglass.run import Run, open_run


class Vector:
    """Numbers on a device; only a readback brings them to the host."""

    def __init__(self, elements: Any) -> None:
        self._there = np.array(elements)
        self.shape, self.dtype = self._there.shape, self._there.dtype

    def __sub__(self, other: Vector) -> Vector:
        return Vector(self._there - other._there)

    def __truediv__(self, scale: float) -> Vector:
        return Vector(self._there / scale)


class Fetched:
    fetched = 0

    def __init__(self, vector: Vector, index: Any) -> None:
        self._there = vector._there.copy() if index is None else vector._there.reshape(-1)[index]

    def resolve(self) -> Any:
        Fetched.fetched += 1
        return self._there


class ToyArrays(Arrays):
    def is_array(self, value: object) -> bool:
        return isinstance(value, Vector)

    def describe(self, array: Vector) -> ArrayInfo:
        return ArrayInfo(array.shape, str(array.dtype), "toy")

    def take(self, array: Vector, index: Any = None) -> Elements:
        return Elements(Fetched(array, index))


MEMBERS = {"numpy": (NumPyArrays(), np.array), "torch": (PyTorchArrays(), torch.tensor), "toy": (ToyArrays(), Vector)}


@pytest.fixture(params=MEMBERS)
def member(request: pytest.FixtureRequest) -> tuple[Arrays, Any]:
    return MEMBERS[request.param]


@pytest.fixture
def hook(tmp_path: Path) -> Any:
    with Hook(tmp_path / "run", strict=True, save_interval=1, save_raw=True, reductions=["median"]) as hook:
        yield hook


def resolved(value: Any) -> Any:
    return value.resolve() if hasattr(value, "resolve") else value


def test_statistics_are_those_of_the_host(member: tuple[Arrays, Any], hook: Hook) -> None:
    arrays, make = member
    data = [np.linspace(-1, 2, 7).reshape(7, 1), np.array([[1.0, np.nan, -np.inf]])]
    older = [np.ones((7, 1)), np.ones((1, 3))]
    for before in (None, older):
        given = None if before is None else [arrays.values(make(each)) for each in before]
        read = Read([arrays.values(make(each)) for each in data], given, 2.0, True, 3)
        rows, histograms = map(resolved, arrays.statistics(read, hook.port.cost))
        expected = NumPyArrays().statistics(Read(data, before, 2.0, True, 3), hook.port.cost)
        np.testing.assert_array_equal(rows, expected[0])
        assert expected[1] is not None
        for part in ("seen", "offsets", "keys", "counts"):
            np.testing.assert_array_equal(getattr(histograms, part), getattr(expected[1], part))
        assert arrays.statistics(read._replace(histograms=False), hook.port.cost)[1] is None


def test_nothing_waits_for_a_device_in_the_training_thread(hook: Hook) -> None:
    Fetched.fetched = 0
    records = CapturedRecords()
    saving = Saving(hook.port.plan, hook.port.ids, hook.port.cost, ToyArrays())
    with hook.step("train"):
        saving.save(records, Role.WEIGHT, Item(Vector([1.0, 2.0]), "w"))
    assert Fetched.fetched == 0
    assert resolved(records.rows[STATISTICS][0].values)[0][0] == 2
    assert Fetched.fetched > 0


def test_a_tensor_is_saved_alike_by_whoever_reads_it(member: tuple[Arrays, Any], hook: Hook) -> None:
    arrays, make = member
    saving = Saving(hook.port.plan, hook.port.ids, hook.port.cost, arrays)
    records = CapturedRecords()
    with hook.step("train"):
        item = Item(make([3.0, 1.0, 8.0]), "w", before=make([1.0, 1.0, 1.0]))
        (tensor_id,) = saving.save_all(records, Role.WEIGHT, [item], 2.0)
    (raw,), (reduction,) = records.rows[RAW], records.rows[REDUCTIONS]
    assert raw.tensor_id == reduction[0] == records.rows[STATISTICS][0].ids[0] == tensor_id
    assert resolved(raw.array).tolist() == [1.0, 0.0, 3.5]
    assert resolved(reduction[2]) == 1.0


@pytest.mark.parametrize("dtype", ["bool", "int16", "uint64", "float16", "float32", "complex64", ">f4", "longdouble"])
def test_numpy_has_numbers_of_any_dtype(dtype: str, hook: Hook) -> None:
    array = np.array([[3, 0, 1], [2, 1, 1]]).astype(dtype)[:, ::2]
    rows, histograms = NumPyArrays().statistics(Read([array], None, None, True, 0), hook.port.cost)
    assert rows[0][0] == 4
    assert rows[0][6] == np.abs(array).max()
    assert histograms is not None


def test_equal_arrays_have_equal_samples_whoever_reads_them(member: tuple[Arrays, Any]) -> None:
    arrays, make = member
    data = np.random.default_rng(3).normal(size=(90, 80)).astype(np.float32)
    taken, expected = Sample.of(arrays, make(data), "x"), Sample.of(NumPyArrays(), data, "x")
    assert hash_of([taken]) == hash_of([expected])
    assert taken.sketch() == expected.sketch()
    assert taken.size == LIMIT < taken.total == data.size
    index = table_positions(data.shape)
    assert index is not None
    rows = Sample.of(arrays, make(data), "x", index, rows=len(index) // 80).table()
    assert rows is not None
    assert {tuple(row) for row in rows.tolist()} <= {tuple(row) for row in data.tolist()}


def test_the_sample_of_an_update_has_the_same_numbers_whoever_read_them(member: tuple[Arrays, Any]) -> None:
    arrays, make = member
    place = ParameterPlace("w", "w", Place("", "Layer", 0))
    group, found = settings_of({"lr": 0.1, "weight_decay": 0.0}, decoupled=False), []
    samples = UpdateSamples("SGD", 3)
    assert not samples.due(2)
    for step in (3, 11):
        assert samples.due(step)
        weight, gradient = np.array([1.0, 2.0]) * step, np.array([2.0, 0.0])
        given = (arrays.take(make(each)) for each in (weight, gradient, weight - 0.1 * gradient / 2))
        parameters = [SampledParameter(place, 1, "float64", 0, *given)]
        found.append(samples.sample(samples.took(step), [(group, None)], parameters, 2.0))
    assert [each.since for each in found] == [None, 8]
    assert [each.cosine_gradient for each in found] == [(-1.0,), (-1.0,)]
    assert [each.zero_gradient for each in found] == [(0.5,), (0.5,)]
    assert found[1].cosine_previous == (1.0,)


@pytest.mark.parametrize("broken", [False, True])
def test_parameters_and_gradients_are_saved_alike_by_whoever_reads_them(
    member: tuple[Arrays, Any], tmp_path: Path, broken: bool
) -> None:
    arrays, make = member
    places = [ParameterPlace(f"layer.{leaf}", leaf, Place("layer", "Layer", 0)) for leaf in ("kernel", "bias")]
    weights, gradients = [make([[1.0, 2.0]]), make([3.0])], [make([[3.0, 0.0]]), make([np.inf if broken else 4.0])]
    owner = Owner()
    with Hook(tmp_path / "run", strict=True, save_interval=1, collections=["all"]) as hook, hook.step("train"):
        records = hook.port.records.current()
        saved = Parameters(hook.port, Saving(hook.port.plan, hook.port.ids, hook.port.cost, arrays))
        named = [(each, place.name, place) for each, place in zip(weights, places, strict=True)]
        saved.before_update(records, owner, named)
        found = [(each, place.name, place) for each, place in zip(gradients, places, strict=True)]
        rows = saved.gradients(records, found, 1.0)
        assert rows is not None
        bad = saved.norm(records, rows, [place.name for place in places])
        saved.updates.save(records)
        assert (bad.bad() if isinstance(bad, LateGradients) else bad) == (["layer.bias"] if broken else [])
    run = open_run(tmp_path / "run")
    kinds = ("layer.kernel", "layer.bias")
    both = {f"{of}/{kind}" for of in ("gradient", "update") for kind in kinds}
    assert set(run.tensor_names()) == {*kinds, *both, "gradient_norm"}
    assert {run.tensor(name).info.role for name in kinds} == {Role.WEIGHT, Role.BIAS}
    assert run.scalars("gradient_norm")[1].tolist() == [np.inf if broken else 5.0]


class Owner:
    """Stands for an optimizer."""


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_updates_are_exact_and_those_that_do_not_fit_take_turns_or_are_sampled(tmp_path: Path, name: str) -> None:
    arrays, make = MEMBERS[name]
    owner, place = Owner(), Place("layer", "Layer", 0)
    parameters = {key: make(np.ones((size, 2))) for key, size in (("a", 8), ("b", 8), ("large", 64))}

    settings: dict[str, Any] = {"collections": ["updates"], "capture_memory_bytes": 200}
    with Hook(tmp_path / "run", strict=True, save_interval=1, **settings) as hook:
        saving = Saving(hook.port.plan, hook.port.ids, hook.port.cost, arrays)
        updates = Updates(hook.port, saving)
        for _ in range(3):
            with hook.step("train"):
                records = hook.port.records.current()
                rows = [(each, key, ParameterPlace(key, key, place)) for key, each in parameters.items()]
                updates.take(records, owner, rows)
                for each in parameters.values():
                    each += 0.5
                updates.save(records)
    run = open_run(tmp_path / "run")
    assert steps(run) == {"update/a": [0], "update/b": [1], "update/large": [2]}
    assert all(run.tensor(each).reductions("mean")[1].tolist() == [0.5] for each in steps(run))
    assert run.tensor("update/a").reductions("count")[1].tolist() == [16]
    assert run.tensor("update/large").reductions("count")[1][0] < 128
    assert hook.port.cost.memory.peak["cpu"] <= 2 * 200


def steps(run: Run) -> dict[str, list[int]]:
    return {name: run.tensor(name).steps() for name in run.tensor_names()}
