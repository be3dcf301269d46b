"""Tests that every adapter must pass, built in or custom: describe a tiny training case and derive a class.

Example::

    class MyCase(AdapterCase):
        def __init__(self):
            super().__init__()
            self.model = ...
        def train(self, steps, after_step): ...
        def evaluate(self): ...
        def parameters(self): ...

    class TestMyAdapter(AdapterSuite):
        case = MyCase

docs/adapters.md has a whole adapter with its case.
"""

from __future__ import annotations

import functools
import gc
import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from watchglass.capture import Hook, arrays_of, attach, loop_of, modules_of
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.control import Commit, Stop
from watchglass.errors import TrainingStopped
from watchglass.evaluate import Met, replay_part
from watchglass.records import Mode, ModuleKind, declared_kinds, facts
from watchglass.rules import BUILT_IN, Rule, build_rule, capture_for
from watchglass.run import Run, open_run

AfterStep = Callable[[int], None]

#: Methods without injected faults: they are not part of a step.
_NOT_BROKEN = frozenset(("close", "forked", "flush"))


class AdapterCase(ABC):
    """A tiny training loop in one framework; each instance starts again, and all compute the same, bit for bit.

    Attributes:
        model: The argument of ``watch`` in a script.
        losses: Loss of each update, as the framework computes it.
        evaluation_losses: Mean loss of the evaluation after each update; empty without evaluations.
    """

    #: Settings of the hook, if the adapter reads data that is not kept by default.
    settings: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        self.model: Any = None
        self.losses: list[float] = []
        self.evaluation_losses: list[float] = []

    def attach(self, hook: Hook) -> None:
        """Watch the model, by the table of frameworks; not called for an unwatched case."""
        driver = loop_of(self.model)
        assert driver is not None, f"no loop of the table is meant by the model {self.model!r}"
        attach(hook.port, driver, self.model)

    @abstractmethod
    def train(self, steps: int, after_step: AfterStep) -> None:
        """Update ``steps`` times, evaluate after each update, and append to the losses.

        Args:
            steps: Number of updates; fewer if the adapter stops the run, by means of the framework or by
                :class:`~watchglass.errors.TrainingStopped`, which must propagate.
            after_step: Called after each update in the training thread, with the number of the update from 0.
        """

    def evaluate(self) -> bool:
        """Evaluate once, outside of :meth:`train`; returns False if the framework cannot."""
        return False

    @abstractmethod
    def parameters(self) -> Mapping[str, NDArray[Any]]:
        """Copies of everything that the updates have changed."""

    def again(self) -> AdapterCase:
        """A case that starts again. One whose functions are slow to compile may keep them, and return itself."""
        return type(self)()


class AdapterSuite(ABC):
    """Conformance of an adapter. Derive and set :attr:`case`."""

    #: The case that the adapter watches.
    case: ClassVar[type[AdapterCase]]
    #: Updates in each test.
    steps: ClassVar[int] = 6

    def watch(self, path: Path, after_step: AfterStep = lambda step: None, **settings: Any) -> tuple[AdapterCase, Run]:
        """A watched case after its last step, and its run."""
        case = self.case()
        with self.hook(path, **settings) as hook:
            case.attach(hook)
            case.train(self.steps, after_step)
        return case, open_run(path)

    def hook(self, path: Path, **settings: Any) -> Hook:
        """A hook that captures every step and raises on faults."""
        return Hook(path, **{"save_interval": 1, "strict": True, **self.case.settings, **settings})

    def unwatched(self, steps: int) -> AdapterCase:
        """The same case without watchglass."""
        case = self.case()
        case.train(steps, lambda step: None)
        return case

    def test_the_training_keeps_its_numbers(self, tmp_path: Path) -> None:
        """Every loss and every parameter has the same bits as without watchglass."""
        watched, _ = self.watch(tmp_path / "run")
        _same_numbers(watched, self.unwatched(self.steps), "watching")

    def test_every_update_is_one_step(self, tmp_path: Path) -> None:
        """TRAIN steps count updates, and an evaluation belongs to the update before it."""
        case, run = self.watch(tmp_path / "run")
        _equal(run.steps(), list(range(self.steps)), "TRAIN steps")
        ends = list(run.worker().tables.steps.values())
        _equal(sorted(end.global_step for end in ends), list(range(len(ends))), "global steps over all modes")
        if case.evaluation_losses:
            evaluated = sorted({end.train_step for end in ends if end.mode is Mode.EVAL})
            _equal(evaluated, list(range(self.steps)), "updates followed by an EVAL step")

    def test_the_loss_is_found_in_every_mode(self, tmp_path: Path) -> None:
        """Its name is ``loss`` in training and in evaluation: rules of all frameworks read this name."""
        case, run = self.watch(tmp_path / "run")
        steps, losses = run.scalars("loss")
        _equal(list(steps), list(range(self.steps)), "TRAIN steps with a loss")
        _close(losses, case.losses, "recorded training losses")
        if case.evaluation_losses:
            means = [stretch.means["loss"] for stretch in run.stretches(Mode.EVAL)]
            _close(means, case.evaluation_losses, "recorded evaluation losses")

    def test_tensors_are_read_only_when_due(self, tmp_path: Path) -> None:
        """Statistics come at the requested interval, training scalars at every step."""
        _, run = self.watch(tmp_path / "run", save_interval=4)
        due = list(range(0, self.steps, 4))
        captured = {name: run.tensor(name).reductions("count")[0].tolist() for name in run.tensor_names()}
        assert any(captured.values()), "no tensor was captured at any step"
        _equal({name: steps for name, steps in captured.items() if not set(steps) <= set(due)}, {}, "steps between")
        _equal(list(run.scalars("loss")[0]), list(range(self.steps)), "TRAIN steps with a loss")

    def test_names_are_stable(self, tmp_path: Path) -> None:
        """A second run has the same catalog; each name means one tensor."""
        catalogs = []
        for name in ("first", "second"):
            _, run = self.watch(tmp_path / name)
            rows = [info.to_json() for info in run.worker().tables.catalog]
            names = Counter(row["name"] for row in rows)
            _equal([name for name, count in names.items() if count > 1], [], "double names")
            catalogs.append({row.pop("name"): {**row, "tensor_id": 0} for row in rows})
        _equal(catalogs[0], catalogs[1], "tensors of two runs of the same case")

    def test_modules_have_kinds(self, tmp_path: Path) -> None:
        """Every module of the model has a known kind, and tensors have the kinds of their modules."""
        _, run = self.watch(tmp_path / "run")
        kinds: dict[str, str] = {}
        for model in run.facts(facts.ModelDescription):
            found = model.module_kinds or {}
            _equal(list(found), list(model.module_types or {}), "modules with kinds")
            kinds |= found
        _equal(sorted(set(kinds.values()) - {kind.value for kind in ModuleKind}), [], "unknown kinds")
        rows = [info for info in run.worker().tables.catalog if info.module in kinds and info.module_type]
        other = [info.name for info in rows if info.module_kind.value != kinds[info.module]]
        _equal(other, [], "tensors whose module is of another kind")

    def test_calls_of_modules_are_observed(self, tmp_path: Path) -> None:
        """Who knows the modules of the model reports their calls until undone; gradients have the shape of parameters.

        Nothing for a model without modules.
        """
        case = self.case()
        known = modules_of(case.model)
        if known is None:
            return
        calls: list[tuple[str, int]] = []
        with self.hook(tmp_path / "run") as hook:
            case.attach(hook)
            undo = known.observe(
                case.model,
                lambda module, arguments: calls.append(("entered", id(module))),
                lambda module, arguments, output: calls.append(("returned", id(module))),
            )
            case.train(1, lambda step: None)
            seen, gradients = list(calls), [(each, known.gradient(each)) for each, _ in known.parameters(case.model)]
            undo()
            case.train(1, lambda step: None)
        _equal(calls, seen, "calls of modules that are reported after observing has ended")
        own = {id(module) for module, _ in known.modules(case.model)}
        _equal({number for _, number in calls} - own, set(), "observed modules that the model does not have")
        counts = (Counter(number for what, number in calls if what == each) for each in ("entered", "returned"))
        _equal(next(counts), next(counts), "calls that began and have not returned")
        shapes = [(_shape(each), _shape(gradient)) for each, gradient in gradients if gradient is not None]
        _equal([pair for pair in shapes if pair[0] != pair[1]], [], "shapes of parameters and of their gradients")
        alone = self.case()
        for _ in range(2):
            alone.train(1, lambda step: None)
        _same_numbers(case, alone, "observing calls of modules")

    def test_facts_are_as_declared(self, tmp_path: Path) -> None:
        """Every recorded fact is of a declared kind, and each of its fields has the declared type."""
        _, run = self.watch(tmp_path / "run")
        kinds = declared_kinds()
        _equal(sorted({fact.kind for fact in run.facts()} - kinds.keys()), [], "kinds of facts that are not declared")
        for fact in run.facts():
            read = fact.read(kinds[fact.kind])
            _equal(None if read is None else read.to_data(), fact.data, f"data of {fact.kind} as they are declared")

    def missing(self, path: Path) -> dict[str, str]:
        """By built-in rule, what it needs and a run of the case has not got; "" for a rule that is fed.

        Left out are rules that look at machines and processes, and those to which no data is indispensable.
        """
        specs = tuple(spec for spec in map(RuleSpec, BUILT_IN) if _of_adapters(build_rule(spec)))
        self.watch(path, **{"profiler": True, **capture_for(specs), "save_interval": 1})
        return {
            rule.name: min((_unmet(needs) for needs in rule.needs.values()), key=len)
            for rule in replay_part(str(path), EvaluatorConfig(str(path), None, specs)).rules.values()
        }

    def test_rules_are_fed(self, tmp_path: Path) -> None:
        """Prints which built-in rules have all that they need, and what the others miss; ``pytest -s`` shows it."""
        missing = self.missing(tmp_path / "run")
        fed = [name for name, lacks in missing.items() if not lacks]
        print(f"\n{self.case.__name__} feeds {len(fed)} of {len(missing)} rules: {', '.join(fed)}")
        print(*(f"  {name}: {lacks}" for name, lacks in missing.items() if lacks), sep="\n")
        assert fed, "the run feeds no rule"

    def test_nothing_happens_before_the_first_training_step(self, tmp_path: Path) -> None:
        """An evaluation alone makes no file and no thread; it is recorded once training begins."""
        case, path = self.case(), tmp_path / "run"
        with self.hook(path) as hook:
            case.attach(hook)
            evaluated = case.evaluate()
            assert not path.exists(), "there is a run directory before the first training step"
            _equal(_threads(), [], "threads before the first training step")
            case.train(1, lambda step: None)
        first = open_run(path)
        if evaluated:
            ends = first.worker().tables.steps.values()
            early = [end for end in ends if end.mode is Mode.EVAL and end.train_step == -1]
            assert early, "the evaluation before the first training step was lost"

    def test_a_stop_ends_the_training_between_two_updates(self, tmp_path: Path) -> None:
        """The run ends at the agreed step, with the model as it was after the last update before."""
        for stop in (0, 3):
            case, path = self.case(), tmp_path / str(stop)
            with self.hook(path) as hook, suppress(TrainingStopped):
                # The recorder's thread calls this when it has seen the evaluator commit a stop.
                commit = functools.partial(hook.port.changes.add, Commit(stop, Stop("requested by a test")))
                case.attach(hook)
                if stop == 0:
                    commit()
                case.train(self.steps, _call_at(stop - 2, commit))
            assert not hook.active, f"a run stopped at step {stop} is still watched"
            _same_numbers(case, self.unwatched(stop), "stopping")
            if stop:
                run = open_run(path)
                _equal(run.steps(), list(range(stop)), "TRAIN steps of a stopped run")
                ends = [event.get("status") for event in run.worker().lifecycle]
                _equal(ends[-1:], ["stopped"], "statuses with which the worker left")

    def test_no_fault_of_watchglass_reaches_the_training(self, tmp_path: Path) -> None:
        """Each method of the hook that the adapter calls fails once, at its first or last call; one warning follows."""
        expected = self.unwatched(self.steps)
        with self.hook(tmp_path / "count") as hook, _Breaking(hook) as counting:
            case = self.case()
            case.attach(hook)
            counting.armed = True
            case.train(self.steps, lambda step: None)
        assert counting.calls, "the adapter calls no method of the hook"
        for number, (name, calls) in enumerate(counting.calls.items()):
            for call in {0, calls - 1}:
                case = case.again()
                path = tmp_path / f"{number}-{call}"
                with _warnings() as warned, self.hook(path, strict=False) as hook:
                    with _Breaking(hook, name, call) as breaking:
                        case.attach(hook)
                        breaking.armed = True
                        _survives(name, case, self.steps)
                    assert not hook.active, f"{name} failed, and the adapter is still attached"
                _same_numbers(case, expected, f"{name} failing")
                reported = [message for message in warned if "capture is off" in message]
                _equal(len(reported), 1, f"warnings ({warned}) after {name} failed")

    def test_detaching_leaves_the_training_as_it_was(self, tmp_path: Path) -> None:
        """After the hook is closed in the middle, training continues, and no reference to the hook remains."""
        hook, case = self.hook(tmp_path / "run"), self.case()
        case.attach(hook)
        case.train(self.steps, _call_at(2, hook.close))
        _equal(open_run(tmp_path / "run").steps(), [0, 1, 2], "TRAIN steps until the hook was closed")
        _same_numbers(case, self.unwatched(self.steps), "detaching")
        _equal(_threads(), [], "threads after the end")
        left = weakref.ref(hook)
        del hook, case
        gc.collect()
        assert left() is None, "the hook is closed, but a reference to it remains"


class _Breaking:
    """Counts the calls of a hook, its clock and its plan, by method, and makes one of them fail."""

    def __init__(self, hook: Hook, name: str = "", call: int = 0) -> None:
        self.armed = False
        self.calls: Counter[str] = Counter()
        self._name, self._call = name, call
        self._places = {"port": hook.port, "clock": hook.port.clock, "plan": hook.port.plan}

    def __enter__(self) -> _Breaking:
        for place, owner in self._places.items():
            for name in vars(type(owner)):
                method = getattr(type(owner), name)
                if not name.startswith("_") and name not in _NOT_BROKEN and callable(method):
                    setattr(owner, name, self._counted(f"{place}.{name}", getattr(owner, name)))
        return self

    def __exit__(self, *exc: object) -> None:
        for owner in self._places.values():
            for name in [name for name, value in vars(owner).items() if hasattr(value, "counted")]:
                delattr(owner, name)

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.armed:
                self.calls[name] += 1
                if name == self._name and self.calls[name] == self._call + 1:
                    raise RuntimeError("broken on purpose")
            return method(*args, **kwargs)

        counted.counted = True  # type: ignore[attr-defined]
        return counted


def _of_adapters(rule: Rule) -> bool:
    needs = [need for need in rule.needs if not need.optional]
    return bool(needs) and not any(need.metrics or need.observations for need in needs) and rule.streams is None


def _unmet(needs: Sequence[Met]) -> str:
    return "; ".join(need.reason for need in needs if not need.satisfied and need.reason)


def _survives(name: str, case: AdapterCase, steps: int) -> None:
    try:
        case.train(steps, lambda step: None)
    except Exception as error:
        raise AssertionError(f"{name} failed, and that reached the training loop: {error!r}") from error


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Messages that watchglass logs in the meantime, not shown on the terminal."""
    log = logging.getLogger("watchglass")
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    propagate, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield found
    finally:
        log.removeHandler(handler)
        log.propagate = propagate


def _call_at(when: int, call: Callable[[], object]) -> AfterStep:
    return lambda step: None if step != when else (call(), None)[1]


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("watchglass")]


def _shape(array: Any) -> tuple[int, ...]:
    return arrays_of(array).describe(array).shape


def _same_numbers(case: AdapterCase, expected: AdapterCase, what: str) -> None:
    _equal(case.losses, expected.losses, f"losses: {what} has changed them")
    found, wanted = case.parameters(), expected.parameters()
    _equal(sorted(found), sorted(wanted), "names of parameters")
    changed = [name for name in wanted if not np.array_equal(found[name], wanted[name], equal_nan=False)]
    _equal(changed, [], f"parameters that {what} has changed")


def _equal(found: Any, wanted: Any, what: str) -> None:
    assert found == wanted, f"{what}: {found!r} instead of {wanted!r}"


def _close(found: Any, wanted: Any, what: str) -> None:
    same = len(found) == len(wanted) and np.allclose(found, wanted, rtol=1e-5, atol=1e-8)
    assert same, f"{what}: {list(found)!r} instead of {list(wanted)!r}"
