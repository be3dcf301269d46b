"""What the model is given: hashes that equal data give and other data do not, sketches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, TensorDataset

from devices.fake_device import FakeDevice, OnDevice
from facts_of import batch, classifier, facts, facts_by_step, watching
from watchglass import Mode, open_run
from watchglass.capture.facts.input_sketches import LIMIT, hash_of, positions
from watchglass.capture.pytorch.facts.copies import sample


def hash_one(tensor: Tensor) -> str:
    taken = sample("0", tensor)
    assert taken is not None
    return hash_of([taken])


KINDS: list[Any] = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64,
    torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (64, 3, 17, 19)], ids=str)
def test_equal_values_have_equal_hashes_whatever_their_layout(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = (torch.randn(shape) * 50).to(dtype)
    first = hash_one(values)
    assert hash_one(values.clone()) == first
    assert hash_one(values.clone().requires_grad_(values.is_floating_point())) == first
    if values.dim() > 1:
        assert hash_one(values.transpose(0, -1).contiguous().transpose(0, -1)) == first
    if values.numel() > 1:
        values.reshape(-1)[3] = 1 if values.reshape(-1)[3] != 1 else 0
        if values.numel() <= LIMIT:
            assert hash_one(values) != first
        assert hash_one(values * 0 if dtype is not torch.float8_e4m3fn else torch.zeros(shape).to(dtype)) != first


def test_a_batch_that_is_a_view_of_few_values_is_read_by_its_own_shape() -> None:
    row = torch.randn(1, 9000)
    assert hash_one(row.expand(10, 9000)) == hash_one(row.repeat(10, 1))


def test_a_buffer_that_is_filled_again_has_another_hash() -> None:
    buffer = torch.randn(16, 6)
    before = sample("0", buffer)
    assert before is not None
    first = hash_of([before])
    buffer.normal_()
    assert hash_of([before]) == first
    assert hash_one(buffer) != first


@pytest.mark.parametrize("total", [LIMIT, LIMIT + 1, 10_007, 64 * 784, 3 * 224 * 224 * 8, 10**9 + 7])
def test_samples_are_spread_over_the_tensor_and_its_periods(total: int) -> None:
    taken = positions(total)
    assert taken.size == LIMIT
    assert len(set(taken.tolist())) == LIMIT
    assert taken.min() >= 0
    assert taken.max() < total
    assert np.diff(np.sort(taken)).max() <= 2 * (total // 256) + 256
    for period in (28, 784, 3, 224, 512) if total > 4 * LIMIT else ():
        # No phase of a period is seen more than a few times too often.
        counts = np.bincount(taken % period, minlength=period)
        assert (counts > 0).mean() > 0.9 or counts.max() < 40


@pytest.mark.parametrize("strides", ["in order", "transposed"])
def test_elements_are_the_same_on_every_device(strides: str) -> None:
    tensor = torch.randn(77, 123) if strides == "in order" else torch.randn(123, 77).t()
    waited: list[str] = []
    with FakeDevice(waited.append):
        there = sample("0", OnDevice(tensor))
    here = sample("0", tensor)
    assert waited == []
    assert here is not None
    assert there is not None
    assert not isinstance(there.taken.array, np.ndarray)
    assert there.octets().tobytes() == here.octets().tobytes() == sample_bytes(tensor)


def sample_bytes(tensor: Tensor) -> bytes:
    return tensor.reshape(-1)[torch.from_numpy(positions(tensor.numel()))].numpy().tobytes()


def test_images_with_dark_borders_are_distinguished() -> None:
    images = torch.zeros(64, 1, 28, 28)
    images[:, :, 8:20, 8:20] = torch.rand(64, 1, 12, 12)
    others = images.clone()
    others[:, :, 8:20, 8:20] = torch.rand(64, 1, 12, 12)
    assert hash_one(images) != hash_one(others)


def test_a_sample_says_how_little_it_has_seen() -> None:
    constant, sparse = torch.ones(64, 500), torch.zeros(64, 500)
    sparse[0, 0] = 1
    for tensor in (constant, sparse, torch.zeros(()), torch.zeros(0, 2)):
        taken = sample("0", tensor)
        assert taken is not None
        assert taken.varied() <= 1
    rich = sample("0", torch.randn(64, 500))
    assert rich is not None
    assert rich.varied() > 4000


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3, device="meta"),
        lambda: torch.ones(3, 3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
    ids=["meta", "sparse", "quantized", "nested"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_read_has_no_sample(make: Callable[[], Tensor]) -> None:
    assert sample("0", make()) is None


def test_inside_a_transform_there_is_no_sample() -> None:
    seen: list[Any] = []

    def look(row: Tensor) -> Tensor:
        seen.append(sample("0", row))
        return row

    torch.func.vmap(look)(torch.randn(4, 3))
    assert seen == [None]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


def test_a_repeated_batch_shows_at_the_captured_steps(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in (0, 1, 2, 1):
            step(model, optimizer, *batch(number))
    hashes = [data["hashes"][0] for data in facts_by_step(run_path, "batch").values()]
    assert len(set(hashes)) == 3
    assert hashes[1] == hashes[3]
    assert facts(run_path, "batch")[0]["shapes"] == {"0": [16, 6]}


def test_all_arguments_count(run_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = classifier()

        def forward(self, mask: Tensor, *, inputs: dict[str, Tensor]) -> Tensor:
            output: Tensor = self.inner(inputs["x"])
            return output

    model = Two()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(2):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(torch.ones(16), inputs={"x": inputs}), labels).backward()
            optimizer.step()
    first, second = facts(run_path, "batch")
    assert first["hashes"] != second["hashes"]
    assert list(first["shapes"].values()) == [[16], [16, 6]]


def test_epochs_are_counted_and_a_loader_is_described_once(run_path: Path) -> None:
    model = classifier()
    data = TensorDataset(*batch(0))
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size=8, shuffle=True)
        for _ in range(3):
            for inputs, labels in loader:
                step(model, optimizer, inputs, labels)
    iterations = [data["iterations"] for data in facts_by_step(run_path, "batch").values()]
    assert iterations == [{"loader": epoch} for epoch in (1, 1, 2, 2, 3, 3)]
    assert [(data["sampler"], data["batches"]) for data in facts(run_path, "data_loader")] == [("RandomSampler", 2)]


class _Buckets(Sampler[list[int]]):
    """Batches in an order of the script's own."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(8, 16)), list(range(8))])

    def __len__(self) -> int:
        raise AssertionError("code of the script must not be called")


@pytest.mark.parametrize(
    ("settings", "described"),
    [
        (lambda data: {"batch_size": 8}, ("SequentialSampler", 8, 2)),
        (
            lambda data: {"batch_sampler": BatchSampler(RandomSampler(data), batch_size=4, drop_last=False)},
            ("RandomSampler", 4, 4),
        ),
        (lambda data: {"batch_sampler": _Buckets()}, ("_Buckets", None, None)),
    ],
)
def test_what_orders_the_samples_is_named(
    run_path: Path, settings: Callable[[Any], Any], described: tuple[str, int | None, int | None]
) -> None:
    model, data = classifier(), TensorDataset(*batch(0))
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, labels in DataLoader(data, **settings(data)):
            step(model, optimizer, inputs, labels)
    (fact,) = facts(run_path, "data_loader")
    assert (fact["sampler"], fact.get("batch_size"), fact.get("batches")) == described


def test_a_watched_loader_gives_the_same_batches(run_path: Path) -> None:
    data = TensorDataset(*batch(0))

    def epoch() -> list[Tensor]:
        torch.manual_seed(3)
        return [inputs for inputs, _ in DataLoader(data, batch_size=4, shuffle=True)]

    expected = epoch()
    with watching(classifier(), run_path):
        iterator = iter(DataLoader(data, batch_size=4))
        found = epoch()
    assert type(iterator).__module__ == "torch.utils.data.dataloader"
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_a_sketch_of_images_has_moments_by_channel(run_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.LazyLinear(3))
    images = (
        torch.randn(64, 3, 12, 12) * torch.tensor([1.0, 2.0, 4.0])[:, None, None]
        + torch.tensor([0.0, 10.0, -10.0])[:, None, None]
    )
    model(images[:1])
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(70):
            step(model, optimizer, images, torch.zeros(64, dtype=torch.long))
    sketches = facts_by_step(run_path, "input_sketch")
    assert list(sketches) == [*range(16), *range(16, 32, 2), *range(32, 64, 4), 64]
    sketch = sketches[0]
    assert sketch["sampled"] == 4096
    assert sketch["channels"]["axis"] == 1
    np.testing.assert_allclose(sketch["channels"]["mean"], [0, 10, -10], atol=0.5)
    np.testing.assert_allclose(sketch["channels"]["std"], [1, 2, 4], rtol=0.15)
    assert sketch["quantiles"] == sorted(sketch["quantiles"])
    assert sketch["quantiles"][5] == pytest.approx(float(images.median()), abs=1.0)


class Into(nn.Module):
    """Gives its input to a layer as it is, flattened, or changed."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change
        self.layers = nn.ModuleList([nn.BatchNorm1d(6), nn.Linear(6, 3)])

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layers[1](self.change(inputs))
        return output + self.layers[0](inputs)[:, :3]


@pytest.mark.parametrize(
    ("change", "into"),
    [
        (lambda inputs: inputs, ["linear", "normalization"]),
        (lambda inputs: inputs.view(-1, 6), ["linear", "normalization"]),
        (lambda inputs: inputs / 2, ["normalization"]),
        (lambda inputs: inputs.clone(), ["normalization"]),
    ],
)
def test_a_sketch_names_what_takes_the_tensor_as_it_is(
    run_path: Path, change: Callable[[Tensor], Tensor], into: list[str]
) -> None:
    model = Into(change)
    with watching(model, run_path, facts=("input_sketch",)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer, *batch(0))
    assert [data["into"] for data in facts(run_path, "input_sketch")] == [into]


def test_a_sketch_of_tokens_has_the_most_common_ones() -> None:
    tokens = torch.randint(2, 50, (16, 100))
    tokens[:, 60:] = 0
    taken = sample("input_ids", tokens)
    assert taken is not None
    sketch = taken.sketch()
    assert sketch is not None
    assert sketch.most_common is not None
    assert sketch.most_common[0] == (0, 0.4)
    assert (sketch.min, sketch.distinct) == (0, 49)


@pytest.mark.parametrize(("norms", "gradient"), [([4.0, 1.0, 3.0], 4 / 3), ([math.nan] * 3, None), ([0.0] * 3, None)])
def test_a_sketch_of_tokens_has_the_gradient_of_padding_if_any_token_has_one(
    norms: list[float], gradient: float | None
) -> None:
    taken = sample("input_ids", torch.tensor([[1, 2, 0], [2, 0, 0]]))
    assert taken is not None
    sketch = taken.sketch(gradients=np.array(norms))
    assert sketch is not None
    assert sketch.padding is not None
    assert sketch.padding.gradient == gradient


def test_a_sketch_counts_what_is_not_finite() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, float("nan"), float("inf"), 0.0])
    taken = sample("0", values)
    assert taken is not None
    sketch = taken.sketch()
    assert sketch is not None
    assert (sketch.nonfinite, sketch.zeros, sketch.mean) == (2, 1, 1.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_sketch_is_right_in_every_float(dtype: torch.dtype) -> None:
    values = torch.randn(50, 40).to(dtype)
    taken = sample("0", values)
    assert taken is not None
    sketch = taken.sketch()
    assert sketch is not None
    assert sketch.mean == pytest.approx(float(values.double().mean()), abs=1e-12)
    assert sketch.std == pytest.approx(float(values.double().std(unbiased=False)), abs=1e-12)


def test_sketches_of_a_validation_are_its_own(run_path: Path) -> None:
    from watchglass.config import Collection, ModeSteps

    model = classifier()
    everything = Collection("outputs", modes={"eval": ModeSteps(save_interval=1), "train": ModeSteps(save_interval=1)})
    with watching(model, run_path, collections=(everything,)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer, *batch(0))
        with torch.no_grad():
            model(batch(1)[0] + 100)
        step(model, optimizer, *batch(2))
    assert facts_by_step(run_path, "input_sketch", Mode.EVAL)[0]["mean"] > 90
    assert open_run(run_path).steps() == [0, 1]
