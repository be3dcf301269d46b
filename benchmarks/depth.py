"""Whether the time of a step grows linearly: models of 10 to 10,000 modules and of 10 to 20,000 parameters.

    python benchmarks/depth.py
    python benchmarks/depth.py --modules 10 100 --parameters 10 100

Each line trains two models that are equal, one bare and one watched, in turns; times are processor time of the thread
that trains, medians over the steps of a kind. The models compute next to nothing, so what is shown is time per module
and parameter. A captured step is one of every four.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import watchglass

INTERVAL, STEPS = 4, 32


class Weights(nn.Module):
    """Any number of parameters in one module."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(2)) for _ in range(size)])

    def forward(self, x: Tensor) -> Tensor:
        """Uses each of them."""
        return x + torch.stack(list(self.weights)).sum(0)


def layers(size: int) -> nn.Module:
    """So many modules with a weight and a bias each, one after the other."""
    return nn.Sequential(*[nn.Linear(2, 2) for _ in range(size)])


@dataclass(frozen=True)
class Times:
    """Processor time of the training's thread in seconds.

    Attributes:
        bare: Of a step of the bare model.
        first: Of the first watched step, which names and describes everything.
        captured: Of a later watched step that is captured.
        uncaptured: Of one that is not.
    """

    bare: float
    first: float
    captured: float
    uncaptured: float


def measure(make: Callable[[int], nn.Module], size: int, folder: Path, steps: int = STEPS) -> Times:
    """Train two models of this size in turns, one of them watched."""
    models = [make(size), make(size)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.0) for model in models]
    inputs = torch.ones(4, 2)
    taken: tuple[list[float], list[float]] = ([], [])
    with watchglass.watch(models[1], run=folder, save_interval=INTERVAL):
        for _ in range(steps):
            for model, optimizer, times in zip(models, optimizers, taken, strict=True):
                began = time.thread_time()
                optimizer.zero_grad()
                model(inputs).sum().backward()
                optimizer.step()
                times.append(time.thread_time() - began)
    bare, watched = taken
    captured = watched[INTERVAL::INTERVAL]
    # The step after a captured one finishes what that one began.
    others = [one for step, one in enumerate(watched) if step > INTERVAL and step % INTERVAL]
    return Times(statistics.median(bare), watched[0], statistics.median(captured), statistics.median(others))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, nargs="*", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--parameters", type=int, nargs="*", default=[10, 100, 1_000, 20_000])
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{'':>20} {'bare ms':>9} {'first ms':>9} {'captured':>9} {'uncaptured':>10} {'captured us each':>17}")
    for name, make, sizes in (("modules", layers, chosen.modules), ("parameters", Weights, chosen.parameters)):
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                times = measure(make, size, Path(folder) / "run")
            each = 1e6 * (times.captured - times.bare) / size
            numbers = [1e3 * value for value in (times.bare, times.first, times.captured, times.uncaptured)]
            print(f"{size:>9,} {name:<10} " + " ".join(f"{value:9.2f}" for value in numbers) + f" {each:17.1f}")


if __name__ == "__main__":
    main()
