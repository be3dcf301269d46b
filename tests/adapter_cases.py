"""Tiny trainings of every framework that has an adapter, for the conformance suite and the hot-path law."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
import xgboost
from numpy.typing import NDArray
from torch import nn
from xgboost.callback import TrainingCallback

from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.capture.xgboost import FEATURE_IMPORTANCE, XGBoostCallback
from watchglass.testing import AdapterCase


class PyTorchCase(AdapterCase):
    """A classifier with everything that depends on mode and chance: dropout, batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inputs = torch.randn(32, 6)
        self.labels = self.inputs[:, :3].argmax(1)
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def attach(self, hook: Hook) -> None:
        PyTorchAdapter(hook, discover=False).attach(self.model)

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        for step in range(steps):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(self.inputs), self.labels)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            after_step(step)
            self.evaluation_losses.append(self._evaluated())

    def evaluate(self) -> bool:
        self._evaluated()
        return True

    def parameters(self) -> Mapping[str, NDArray[Any]]:
        return {name: value.numpy().copy() for name, value in self.model.state_dict().items()}

    def _evaluated(self) -> float:
        self.model.eval()
        with torch.no_grad():
            loss = F.cross_entropy(self.model(self.inputs), self.labels)
        self.model.train()
        return float(loss)


class NumPyCase(AdapterCase):
    """A linear regression in a loop that no adapter knows."""

    hook: Hook | None = None

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(3)
        self.inputs = random.normal(size=(32, 4))
        self.targets = self.inputs @ np.array([1.0, -2.0, 0.5, 0.0])
        self.weights = np.zeros(4)

    def attach(self, hook: Hook) -> None:
        self.hook = hook

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        for step in range(steps):
            if self.hook is None:
                self.update()
            else:
                with self.hook.step("train") as recorded:
                    gradient = self.update()
                    self.hook.save_scalar("loss", self.loss())
                    if recorded.due:
                        self.hook.save_tensor("gradient/weights", gradient)
            self.losses.append(self.loss())
            after_step(step)
            self.evaluate()
            self.evaluation_losses.append(self.loss())

    def evaluate(self) -> bool:
        if self.hook is not None:
            with self.hook.step("eval"):
                self.hook.save_scalar("loss", self.loss())
        return True

    def parameters(self) -> Mapping[str, NDArray[Any]]:
        return {"weights": self.weights.copy()}

    def loss(self) -> float:
        return float(np.mean((self.inputs @ self.weights - self.targets) ** 2))

    def update(self) -> NDArray[np.float64]:
        gradient: NDArray[np.float64] = self.inputs.T @ (self.inputs @ self.weights - self.targets) / 16
        self.weights -= 0.1 * gradient
        return gradient


class XGBoostCase(AdapterCase):
    """A booster with a training set and a validation set."""

    settings: ClassVar = {"collections": [FEATURE_IMPORTANCE]}

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(3)
        inputs = random.normal(size=(80, 4))
        labels = (inputs[:, 0] + 0.3 * random.normal(size=80) > 0).astype(int)
        self.data, self.held_out = xgboost.DMatrix(inputs[:50], labels[:50]), xgboost.DMatrix(inputs[50:], labels[50:])
        self.callbacks: list[TrainingCallback] = []
        self.model: xgboost.Booster | None = None

    def attach(self, hook: Hook) -> None:
        self.callbacks = [XGBoostCallback(lambda: hook)]

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        class AfterStep(TrainingCallback):
            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                after_step(epoch)
                return False

        found: dict[str, Any] = {}
        self.model = xgboost.train(
            {"objective": "binary:logistic", "max_depth": 2, "subsample": 0.8, "seed": 3, "nthread": 1},
            self.data, steps, evals=[(self.data, "train"), (self.held_out, "validation")], evals_result=found,
            callbacks=[*self.callbacks, AfterStep()], verbose_eval=False,
        )  # fmt: skip
        if found:
            self.losses += found["train"]["logloss"]
            self.evaluation_losses += found["validation"]["logloss"]

    def parameters(self) -> Mapping[str, NDArray[Any]]:
        assert self.model is not None
        return {"model": np.frombuffer(self.model.save_raw("ubj"), np.uint8)}
