"""A training run bare and watched: whatever comes of it must be the same to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import watchglass
from watchglass import Mode, Run, open_run
from watchglass.capture.pytorch import PyTorchAdapter

#: Every built-in collection: nothing that can be captured is left out.
EVERYTHING = (
    "all", "optimizer_variables", "inputs", "labels", "predictions", "model_input", "input_image", "input_sequence",
    "input_gradients", "relu_input", "relu_output", "tanh_input", "sigmoid_input", "attention", "router", "logsumexp",
    "float8_casts",
)  # fmt: skip

#: Steps after which a training run takes the fast path, and some of that.
STEPS = 24
ALL = list(range(STEPS))

#: Given to a training run: called with each of its models when watching may begin.
Watch = Callable[..., None]
Training = Callable[[Watch], Any]


def trained_twice(
    path: Path, training: Training, *, same_steps: bool = True, discovered: bool = True, **settings: Any
) -> Run:
    """Train without watchglass, with everything captured at every step, and with nothing due, as at most steps.

    And once as ``watchglass run`` watches it, which finds the models itself.

    Its result (numbers, tensors, modules, optimizers, nested in lists, tuples and mappings) must be the same each time
    to the last bit, gradients, optimizer state and random state included.

    Args:
        path: Where the runs are written.
        training: Called with a function that it calls with its models (and settings) once they may be watched.
        same_steps: Whether all runs must have the same steps, losses and learning rates.
        discovered: Whether that holds where the models are found, too: not where some were not to be watched.
        **settings: For the watching at every step.

    Returns:
        The run that has everything; the others are in the folders ``sparse`` and ``found``.
    """
    full = {"save_interval": 1, "collections": EVERYTHING, "modes": {"eval": {"save_interval": 1}}, **settings}
    bare = _outcome(training, None, {})
    runs = []
    for name, chosen in (("full", full), ("sparse", {"save_interval": 1000}), ("found", full)):
        watched = _outcome(training, path / name, chosen)
        differing = sorted(key for key in bare.keys() | watched.keys() if bare.get(key) != watched.get(key))
        assert not differing, f"watching ({name}) changed the training: {differing}"
        runs.append(open_run(path / name))
    for run in runs:
        assert not run.facts("capture_fault")
        assert not run.problems
    for other in runs[1 : (3 if discovered else 2) if same_steps else 1]:
        _same_course(other, runs[0])
    return runs[0]


def batch(number: int, rows: int = 16) -> tuple[Tensor, Tensor]:
    """Inputs of twelve features and labels of four classes; the same for the same number."""
    inputs = torch.randn(rows, 12, generator=torch.Generator().manual_seed(number))
    return inputs, inputs[:, :4].argmax(1)


def train(model: nn.Module, optimizer: Optimizer, number: int) -> float:
    """The plainest step of a classifier; returns its loss."""
    inputs, labels = batch(number)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def simply(make: Callable[[], nn.Module]) -> Callable[[Watch], Any]:
    """The plainest training of a model."""

    def training(watch: Watch) -> Any:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        watch(model)
        return [train(model, optimizer, number) for number in ALL], model, optimizer

    return training


class Stack(nn.Module):
    """Two layers and what happens between them."""

    def __init__(self, between: Callable[[Stack, Tensor], Tensor] = lambda stack, x: stack.second(torch.relu(x))):
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 16)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, 4)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.between(self, self.first(x))))


def numbers(run: Run, name: str, step: int) -> dict[str, float]:
    """What was recorded of a tensor."""
    tensor = run.tensor(name)
    return {key: tensor.reduction(step, key) for key in ("count", "nan", "posinf", "zero", "min", "max", "sum", "l2")}


def numbers_of(values: Tensor) -> dict[str, float]:
    """What should be."""
    wide = values.detach().abs() if values.is_complex() else values.detach()
    given = wide.double().numpy().ravel()
    finite = given[np.isfinite(given)]
    return {
        "count": given.size, "nan": np.isnan(given).sum(), "posinf": np.isposinf(given).sum(),
        "zero": (given == 0).sum(), "min": finite.min() if finite.size else np.nan,
        "max": finite.max() if finite.size else np.nan, "sum": finite.sum(), "l2": np.linalg.norm(finite),
    }  # fmt: skip


def l2(run: Run, name: str, **where: Any) -> dict[int, float]:
    """Norms of a tensor by step."""
    steps, values = run.tensor(name).reductions("l2", **where)
    return {int(step): float(value) for step, value in zip(steps, values, strict=True)}


def losses(run: Run, **where: Any) -> list[float]:
    """The losses of TRAIN steps in their order."""
    return [float(value) for value in run.scalars("loss", **where)[1]]


def bits(value: Any) -> dict[str, bytes]:
    """Every number in the outcome of a training run as bytes, by its place."""
    return dict(_bits("", value))


def _outcome(training: Training, path: Path | None, settings: Mapping[str, Any]) -> dict[str, bytes]:
    torch.manual_seed(11)
    hooks: list[Any] = []
    if path is not None and path.name == "found":
        hooks.append(watchglass.Hook(path, strict=True, **settings))
        PyTorchAdapter(hooks[0].port, discover=True)

    def watch(*models: nn.Module) -> None:
        for model in models if path is not None and path.name != "found" else ():
            hooks.append(watchglass.watch(model, **({} if hooks else {"run": path, "strict": True, **settings})))

    try:
        result = bits(training(watch))
    finally:
        for hook in hooks[:1]:
            hook.close()
    random = {"random state": torch.get_rng_state()}
    if torch.cuda.is_available():
        random["random state of the GPU"] = torch.cuda.get_rng_state()
    return {**result, **{name: state.numpy().tobytes() for name, state in random.items()}}


def _bits(place: str, value: Any) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, nn.Module):
        yield from _bits(f"{place}.state", value.state_dict(keep_vars=False))
        yield from _bits(f"{place}.grad", {name: parameter.grad for name, parameter in value.named_parameters()})
    elif isinstance(value, Optimizer):
        yield from _bits(f"{place}.optimizer", value.state_dict())
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _bits(f"{place}.{key}", member)
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(value):
            yield from _bits(f"{place}.{index}", member)
    elif isinstance(value, Tensor):
        yield place, _bytes(value.detach())
    else:
        yield place, repr(value).encode()


def _bytes(tensor: Tensor) -> bytes:
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return _bytes(tensor.indices()) + _bytes(tensor.values())
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_meta:
        return repr(tensor).encode()
    head = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return head + tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


def _course(run: Run) -> dict[str, list[Any]]:
    """What is known of every step whether it is captured or not."""
    course: dict[str, list[Any]] = {}
    for mode in (Mode.TRAIN, Mode.EVAL):
        course[f"steps of {mode.name}"] = run.steps(mode)
        for name in ("loss", "learning_rate"):
            if name in run.tensor_names():
                steps, values = run.scalars(name, mode=mode)
                pairs = zip(map(int, steps), map(float, values), strict=True)
                course[f"{name} of {mode.name}"] = [f"{step}: {value!r}" for step, value in pairs]
    return course


def _same_course(one: Run, other: Run) -> None:
    first, second = _course(one), _course(other)
    for key in sorted(first.keys() | second.keys()):
        assert first.get(key, []) == second.get(key, []), f"{key} in {one} and {other}"
