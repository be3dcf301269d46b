"""The conformance suite fails for adapters that are broken, each in one way, and passes for one that is not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from watchglass import Hook, Mode, Role, TrainingStopped
from watchglass.capture import Modules
from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.records import DeclaredFact, facts
from watchglass.testing import AdapterCase, AdapterSuite


class Trainer:
    """A framework with one hook point: a listener to every update."""

    def __init__(self) -> None:
        self.weights = np.linspace(-1.0, 1.0, 4)
        self.listeners: list[Any] = []

    def update(self) -> float:
        for listener in self.listeners:
            listener.before(self)
        gradient = 2 * self.weights
        self.weights -= 0.1 * gradient
        loss = float((self.weights**2).sum())
        for listener in self.listeners:
            listener.after(self, loss, gradient)
        return loss


class Adapter:
    """As it should be."""

    def __init__(self, hook: Hook, trainer: Trainer) -> None:
        self.hook = hook
        self.before, self.after = hook.port.guarded(self.begin), hook.port.guarded(self.end)
        trainer.listeners.append(self)
        hook.port.detach_with(lambda: trainer.listeners.remove(self))

    def begin(self, trainer: Trainer) -> None:
        self.hook.port.apply_changes()
        self.hook.port.clock.begin(Mode.TRAIN)
        self.hook.port.ensure_started()

    def end(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        step = self.hook.port.clock.train
        if step is None:
            return
        self.hook.port.add_scalar(step.records, "loss", loss, Role.LOSS)
        if step.due:
            self.hook.save_tensor(self.name(), gradient)
        self.hook.port.clock.end(step)

    def name(self) -> str:
        return "gradient/weights"


class Good(AdapterCase):
    adapter: type[Adapter] = Adapter

    def __init__(self) -> None:
        super().__init__()
        self.trainer = self.model = Trainer()

    def attach(self, hook: Hook) -> None:
        self.adapter(hook, self.trainer)

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        for step in range(steps):
            self.losses.append(self.trainer.update())
            after_step(step)

    def parameters(self) -> Mapping[str, NDArray[Any]]:
        return {"weights": self.trainer.weights.copy()}


class ChangesNumbers(Adapter):
    def end(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        super().end(trainer, loss, gradient)
        trainer.weights += 1e-15


class CountsTwice(Adapter):
    def end(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        super().end(trainer, loss, gradient)
        if self.hook.port.clock.next_train_step == 3:
            self.hook.port.clock.end(self.hook.port.clock.begin(Mode.TRAIN))


class MissesLosses(Adapter):
    def end(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        super().end(trainer, loss + 1, gradient)


class ReadsAlways(Adapter):
    def end(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        self.hook.save_tensor("gradient/weights", gradient)
        super().end(trainer, loss, gradient)


class NamesByIdentity(Adapter):
    numbers = itertools.count()

    def __init__(self, hook: Hook, trainer: Trainer) -> None:
        super().__init__(hook, trainer)
        self.number = next(self.numbers)

    def name(self) -> str:
        return f"gradient/{self.number}"


class StartsAtOnce(Adapter):
    def __init__(self, hook: Hook, trainer: Trainer) -> None:
        super().__init__(hook, trainer)
        hook.port.ensure_started()


class DoesNotStop(Adapter):
    def begin(self, trainer: Trainer) -> None:
        self.hook.port.clock.begin(Mode.TRAIN)
        self.hook.port.ensure_started()


class StopsTooLate(Adapter):
    def end(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        super().end(trainer, loss, gradient)
        try:
            self.hook.port.apply_changes()
        except TrainingStopped:
            trainer.weights *= 0.5
            raise


class LetsFaultsThrough(Adapter):
    def __init__(self, hook: Hook, trainer: Trainer) -> None:
        super().__init__(hook, trainer)
        self.after = self.end


class HidesFaults(Adapter):
    def end(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        try:
            super().end(trainer, loss, gradient)
        except Exception:
            return


class StaysAttached(Adapter):
    def __init__(self, hook: Hook, trainer: Trainer) -> None:
        super().__init__(hook, trainer)
        trainer.listeners.append(Doubling(hook))


class Doubling:
    """What an adapter has put into a framework and forgotten there."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def before(self, trainer: Trainer) -> None:
        if not self.hook.active:
            trainer.weights *= 2

    def after(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        pass


class KeepsTheHook(Adapter):
    kept: list[Hook] = []  # noqa: RUF012

    def __init__(self, hook: Hook, trainer: Trainer) -> None:
        super().__init__(hook, trainer)
        self.kept.append(hook)


class InventsKinds(Adapter):
    def end(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        about = facts.ModelDescription(module_types={"": "Trainer"}, module_kinds={"": "trainer"})
        self.hook.port.records.current().add_fact(about, "test")
        super().end(trainer, loss, gradient)


class Invented(DeclaredFact, kind="invented"):
    def to_data(self) -> dict[str, Any]:
        return {}


class InventsFacts(Adapter):
    def end(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        self.hook.port.records.current().add_fact(Invented(), "test")
        super().end(trainer, loss, gradient)


class LeavesOutKinds(Adapter):
    def end(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        about = facts.ModelDescription(module_types={"": "Trainer"})
        self.hook.port.records.current().add_fact(about, "test")
        super().end(trainer, loss, gradient)


class RecordsNothing(Adapter):
    def end(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        step = self.hook.port.clock.train
        if step is not None:
            self.hook.port.clock.end(step)


BROKEN = {
    RecordsNothing: "test_rules_are_fed",
    InventsFacts: "test_facts_are_as_declared",
    InventsKinds: "test_modules_have_kinds",
    LeavesOutKinds: "test_modules_have_kinds",
    ChangesNumbers: "test_the_training_keeps_its_numbers",
    CountsTwice: "test_every_update_is_one_step",
    MissesLosses: "test_the_loss_is_found_in_every_mode",
    ReadsAlways: "test_tensors_are_read_only_when_due",
    NamesByIdentity: "test_names_are_stable",
    StartsAtOnce: "test_nothing_happens_before_the_first_training_step",
    DoesNotStop: "test_a_stop_ends_the_training_between_two_updates",
    StopsTooLate: "test_a_stop_ends_the_training_between_two_updates",
    LetsFaultsThrough: "test_no_fault_of_watchglass_reaches_the_training",
    HidesFaults: "test_no_fault_of_watchglass_reaches_the_training",
    StaysAttached: "test_detaching_leaves_the_training_as_it_was",
    KeepsTheHook: "test_detaching_leaves_the_training_as_it_was",
}


class TestGood(AdapterSuite):
    case = Good


def suite_of(adapter: type[Adapter]) -> AdapterSuite:
    case = type("Case", (Good,), {"adapter": adapter})
    suite: AdapterSuite = type("Suite", (AdapterSuite,), {"case": case})()
    return suite


@pytest.mark.parametrize(("adapter", "check"), BROKEN.items(), ids=[adapter.__name__ for adapter in BROKEN])
def test_the_suite_fails_for_an_adapter_that_is_broken(tmp_path: Path, adapter: type[Adapter], check: str) -> None:
    with pytest.raises(AssertionError):
        getattr(suite_of(adapter), check)(tmp_path)
    KeepsTheHook.kept.clear()


class ObservesForEver(Modules):
    """Knows the modules of the toy, and cannot undo what it observes."""

    def is_model(self, value: object) -> bool:
        return isinstance(value, Trainer)

    def modules(self, model: Trainer) -> Iterable[tuple[Any, Place]]:
        return [(model, Place("", "Trainer", 0))]

    def parameters(self, model: Trainer) -> Iterable[tuple[Any, ParameterPlace]]:
        return []

    def observe(
        self, model: Trainer, entered: Callable[[Any, Any], None], returned: Callable[[Any, Any, Any], None]
    ) -> Callable[[], None]:
        model.listeners.append(Calls(entered, returned))
        return lambda: None


class Calls:
    def __init__(self, entered: Callable[[Any, Any], None], returned: Callable[[Any, Any, Any], None]) -> None:
        self.entered, self.returned = entered, returned

    def before(self, trainer: Trainer) -> None:
        self.entered(trainer, ())

    def after(self, trainer: Trainer, loss: float, gradient: NDArray[np.float64]) -> None:
        self.returned(trainer, (), loss)


class ObservesTheUpdate(ObservesForEver):
    """Undoes it, but reports calls of something that is no module of the model."""

    def observe(
        self, model: Trainer, entered: Callable[[Any, Any], None], returned: Callable[[Any, Any, Any], None]
    ) -> Callable[[], None]:
        listener = Calls(lambda module, arguments: entered(model.update, arguments), lambda *given: None)
        model.listeners.append(listener)
        return lambda: model.listeners.remove(listener)


@pytest.mark.parametrize("modules", [ObservesForEver, ObservesTheUpdate])
def test_the_suite_fails_for_modules_that_are_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: type[Modules]
) -> None:
    monkeypatch.setattr("watchglass.testing.adapter_suite.modules_of", lambda model: modules())
    with pytest.raises(AssertionError):
        suite_of(Adapter).test_calls_of_modules_are_observed(tmp_path)


def test_every_check_has_an_adapter_that_breaks_it() -> None:
    checks = {name for name in vars(AdapterSuite) if name.startswith("test_")}
    assert checks == {*BROKEN.values(), "test_calls_of_modules_are_observed"}
