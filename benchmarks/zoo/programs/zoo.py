"""What each program of the zoo has beside its training: its name, its seed, and a log of its own figures.

A program declares itself in a literal, `PROGRAM`, which `score.py` reads without running the program:

    PROGRAM = {
        "task": "digits",                   # what is learned
        "architecture": "MLP",              # by what
        "healthy": {"plain": "SGD with momentum", "adamw": "AdamW with warm-up"},
        "faults": {"zero_grad_left_out": ("zero_grad_missing", "plain")},   # name: (fault class, its healthy twin)
    }

A program of another framework than PyTorch declares it: `"framework": "keras"` or `"jax"`. It is imported before the
zoo, which seeds what is there.

`python digits_mlp.py zero_grad_left_out --seed 1` runs one of them. Everything but the fault is as in the twin.
"""

from __future__ import annotations

import argparse
import atexit
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Zoo:
    """One run of a program.

    Attributes:
        fault: Name of the fault, "" for a healthy program.
        variant: Name of the healthy variant, of a faulty program that of its twin.
        seed: Number that all randomness follows from.
    """

    def __init__(self, program: Mapping[str, Any]) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("name", choices=[*program["healthy"], *program["faults"]])
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--figures", type=Path, help="write the figures of the run to this file")
        parser.add_argument("--measure", action="store_true", help="measure the skill at the end")
        options = parser.parse_args()
        faulty = options.name in program["faults"]
        self.fault: str = options.name if faulty else ""
        self.variant: str = program["faults"][options.name][1] if faulty else options.name
        self.seed: int = options.seed
        self._measures: bool = options.measure
        self._figures: dict[str, Any] = {"training": [], "validation": [], "skill": None}
        if options.figures is not None:
            # Also after an exception: a program that fails has figures up to there.
            atexit.register(lambda: options.figures.write_text(json.dumps(self._figures), encoding="utf-8"))
        random.seed(self.seed)
        np.random.seed(self.seed)  # noqa: NPY002 - libraries draw from the global generator
        # Several programs run side by side, each in one thread. JAX has no global generator.
        if torch := sys.modules.get("torch"):
            torch.manual_seed(self.seed)
            torch.set_num_threads(1)
        if keras := sys.modules.get("keras"):
            keras.utils.set_random_seed(self.seed)

    def has(self, fault: str) -> bool:
        """Whether this run has the fault."""
        return self.fault == fault

    def trained(self, step: int, loss: float) -> None:
        """Log a training loss, as the script sees it."""
        self._figures["training"].append((step, float(loss)))

    def validated(self, step: int, loss: float) -> None:
        """Log a validation loss, as the script sees it."""
        self._figures["validation"].append((step, float(loss)))

    def fitted(self, history: Mapping[str, Sequence[float]]) -> None:
        """Log the losses that `fit` of Keras returns, by epoch."""
        for epoch, loss in enumerate(history["loss"]):
            self.trained(epoch, loss)
        for epoch, loss in enumerate(history.get("val_loss", ())):
            self.validated(epoch, loss)

    def measured_by(self, skill: Callable[[], float]) -> None:
        """End the run; with ``--measure`` also measure what the model has learned.

        Args:
            skill: What the model can do on clean held-out data, in the right mode: 1 is perfect and 0 is guessing
                (accuracy above chance over what is possible above it, 1 - squared error over variance, or the like).
                Called in a run that is not watched, so that the measurement cannot help a rule.
        """
        if self._measures:
            self._figures["skill"] = float(skill())


def above_chance(right: float, chance: float) -> float:
    """Skill of a share of right answers, both in 0..1."""
    return (right - chance) / (1 - chance)
