"""Watches the models of a process: their functions are those of Keras, with a step around each call."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras

from watchglass.capture.arrays import number_of
from watchglass.capture.compiled.delivery import StepDelivery
from watchglass.capture.compiled.membership import OptimizedParameters
from watchglass.capture.compiled.reductions import ReducingArrays
from watchglass.capture.compiled.steps import CompiledSteps
from watchglass.capture.frameworks import FRAMEWORKS
from watchglass.capture.keras.backends import Backend, TakenBatches
from watchglass.capture.keras.collecting import StepValues, reader_on_device
from watchglass.capture.keras.data_waits import BatchWaits
from watchglass.capture.keras.fits import Fits
from watchglass.capture.keras.functions import FunctionTwin, WatchedFunction
from watchglass.capture.keras.models import KerasModel
from watchglass.capture.keras.repetitions import repetition
from watchglass.capture.keras.training_modes import any_in_training
from watchglass.capture.loops import loop
from watchglass.capture.model_numbers import FrameworkNumbers
from watchglass.capture.port import Port
from watchglass.capture.step_phases import NO_PHASES
from watchglass.capture.wrappers_importlib_bootstrap import RAISED, around
from watchglass.config import chosen_facts
from watchglass.record import OpenStep
from watchglass.records import Mode, facts
from watchglass.store import ABSENT

#: Functions by the name of their mode in Keras.
_MODES = {"train": Mode.TRAIN, "test": Mode.EVAL, "predict": Mode.PREDICT}
_WAITS, _COMPILED = FRAMEWORKS["keras"].hidden
_NAMES = {mode: name for name, mode in _MODES.items()}


class KerasWatching:
    """Records the executions of all watched models through one port. For the training thread.

    Args:
        port: Gets all records.
        backend: The backend of this process.
    """

    def __init__(self, port: Port, backend: Backend) -> None:
        self.port, self._backend = port, backend
        self._steps = CompiledSteps(port, loop(backend.name).profiler(port))
        self._delivery = StepDelivery(port, "keras", self._steps)
        self._membership = OptimizedParameters("update")
        self._models: weakref.WeakKeyDictionary[Any, KerasModel] = weakref.WeakKeyDictionary()
        self._numbers = FrameworkNumbers(port.model_numbers)
        self._chosen: weakref.WeakSet[Any] | None = weakref.WeakSet()
        # Whether it is said that waits for data do not show.
        self._told = port.phases is None
        # Of a call that may make several updates: batches and updates that are expected of it, updates that have a
        # number. Numbers that were given to updates that did not come: the next ones have no others.
        self._expected = self._updates = self._numbered = self._ahead = 0
        # Updates after the recorded one that have no number yet; how many batches a call takes at most.
        self._unnumbered, self._interval = 0, 1
        port.on_end.append(self._record_last)
        # Guarded, so that each may return None.
        self._begin: Callable[..., Any] = port.guarded(self._begins)
        self._end = port.guarded(self._ends)
        # Shielded, which costs less: they call nothing that is observed.
        shielded = port.guard.shielded
        self._begins_row, self._ends_row = shielded(self._begin_row), shielded(self._end_row)
        self._fail, self._take = port.guarded(self._fails), port.guarded(backend.taken)
        self._waits, self._computes = map(port.guard.shielded, (self._steps.waits, self._steps.computes))
        self._find_twin: Callable[[WatchedFunction], FunctionTwin | None] = port.guarded(_twin_of)
        self._originals: dict[str, Callable[..., Any]] = {}
        for name in _MODES:
            self._wrap(f"make_{name}_function", functools.partial(self._made, name))
        self._wrap("reset_metrics", self._reset)
        self._fits = Fits(port, self._is_watched, self._epoch_begins)
        BatchWaits(port, self._steps)  # around the work of watchglass in the same callbacks
        port.detach_with(self._restore)

    def watch(self, model: Any) -> None:
        """Watch a model; None for each that is trained."""
        if model is None:
            self._chosen = None
        elif self._chosen is not None:
            self._chosen.add(model)

    @property
    def runs(self) -> bool:
        """Whether Keras has run functions of models."""
        return bool(self._models)

    def execute(self, function: WatchedFunction, args: tuple[Any, ...]) -> Any:
        """Call a function, or its twin where something is due, and record it as a step."""
        guard, values, taken = self.port.guard, None, None
        if not guard.active or guard.is_busy:
            return function.plain(*args)
        if function.mode is Mode.TRAIN and self._begins_row(function):
            return self._pass(function, args)
        recorded, step = self._begin(function) or (False, None)
        twin = None if step is None else self._find_twin(function)
        if twin is not None or self._backend.counts_batches:
            args, taken = self._taking(args)
        guard.passing = True
        try:
            if twin is None:
                result = function.plain(*args)
            else:
                result, values = twin(function.plain, args, taken)
        except BaseException:
            guard.passing = False
            self._fail(function)
            raise
        guard.passing = False
        self._end(function, args, taken, result, step, values, recorded)
        return result

    def _pass(self, function: WatchedFunction, args: tuple[Any, ...]) -> Any:
        """A call that makes one update, at which nothing is due."""
        guard, taken = self.port.guard, None
        if self._backend.counts_batches:
            args, taken = self._taking(args)
        guard.passing = True
        try:
            result = function.plain(*args)
        except BaseException:
            guard.passing = False
            self._fail(function)
            raise
        guard.passing = False
        self._ends_row(function, args, taken, result)
        return result

    def _taking(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], TakenBatches | None]:
        """The arguments, with data that show what the function takes; None for what the backend itself reads."""
        taken: TakenBatches | None = self._take(args[-1])
        if taken is None:
            return args, None
        taken.waits, taken.arrived = self._waits, self._computes
        return (*args[:-1], taken), taken

    def _begin_row(self, function: WatchedFunction) -> bool:
        about, several = function.about, function.model.steps_per_execution
        if several > 1 or self._interval > 1 or about.batches_per_update > 1 or not self._steps.begin_row(about.number):
            return False
        about.trains(1)
        return True

    def _end_row(
        self, function: WatchedFunction, args: tuple[Any, ...], taken: TakenBatches | None, result: Any
    ) -> None:
        about, logs = function.about, self._backend.logs(result)
        about.count(args[-1], taken, 1)
        loss = number_of(about.loss(Mode.TRAIN, "loss", logs["loss"])) if "loss" in logs else ABSENT
        self._steps.returned(self._backend.unfinished(logs))
        self._steps.end_row(loss, about.rate, model=about.number)
        self._fits.after_step(function.model)

    def _begins(self, function: WatchedFunction) -> tuple[bool, OpenStep | None]:
        """Whether the call is recorded, and its step if that is due."""
        self._number_left()
        if function.mode is Mode.TRAIN:
            about, several = self._of(function.model), function.model.steps_per_execution
            self._expected = 1 if several == 1 else self._fits.batches_ahead(function.model)
            self._updates = about.trains(self._expected)
            if not self._updates:
                self._numbered = 0
                return False, None
            if several != self._interval:
                self._interval = several
                self.port.records.carried.add_fact(facts.RecordedInterval(several), "keras")
            if several > 1:
                self._number(about)
        return True, self._steps.begin(function.mode)

    def _epoch_begins(self, model: Any) -> None:
        self._number_left()
        self._of(model).read_settings()

    def _number(self, about: KerasModel) -> None:
        """Of several updates of a call one is recorded: that which is due, else the last."""
        clock = self.port.clock
        updates = max(1, self._updates - self._ahead)
        self._steps.leave()
        due = self.port.plan.next_due(clock.next_train_step, about.number) - clock.next_train_step
        self._numbered = 1 + min(due, updates - 1)
        clock.pass_train(self._numbered - 1)

    def _number_others(self, about: KerasModel, taken: TakenBatches | None) -> None:
        """The call is over, and shows how many updates it has made: number those that have no number yet."""
        uncounted = about.batches_uncounted if taken is None else len(taken.taken) - self._expected
        left = self._updates + about.trains(uncounted) - self._numbered - self._ahead
        self._ahead = max(0, -left)
        self._unnumbered = max(0, left)
        if self.port.changes.pending:
            self._number_left()

    def _number_left(self) -> None:
        left, self._unnumbered = self._unnumbered, 0
        if left:
            self._steps.leave()
            self.port.clock.pass_train(left)

    def _record_last(self) -> None:
        """At the end, record the last update without a loss, so that the number of steps is known."""
        if self._unnumbered:
            self.port.clock.pass_train(self._unnumbered - 1)
            now_ns = self.port.clock.now_ns()
            self.port.steady.step(now_ns, now_ns, ABSENT, ABSENT, 0.0, NO_PHASES)

    def _fails(self, function: WatchedFunction) -> None:
        if function.mode is Mode.TRAIN and self._interval > 1 and self._numbered:
            self._ahead += self._numbered - 1
        self._steps.fail()

    def _ends(
        self, function: WatchedFunction, args: tuple[Any, ...], taken: TakenBatches | None, result: Any,
        step: OpenStep | None, values: Any, recorded: bool,
    ) -> None:  # fmt: skip
        about, mode = self._of(function.model), function.mode
        if step is not None:
            about.describe(step, mode, self._numbers.in_facts(about.number))
            if values:
                collected = function.twin.values
                programs, collected.programs = collected.programs, []
                for read in programs:
                    self._delivery.traced(functools.partial(read, values), about.number)
                updaters = {} if about.updater is None else {about.number: about.updater}
                whole = any_in_training(collected.modes)
                with self._backend.owned():
                    self._delivery.save(step, values, collected.known, updaters, in_training=whole)
                about.learn_means(mode, collected.means)
                kinds = chosen_facts(self.port.config.facts) if step.due else frozenset()
                if mode is Mode.TRAIN and "membership" in kinds:
                    self._membership.save(step, about.number, collected.given, about.trainable())
                if mode is not Mode.PREDICT and "training_flags" in kinds:
                    about.modes.save(step, collected.modes, type(function.model).__name__, about.frozen())
        about.count(args[-1], taken, function.model.steps_per_execution)
        if not recorded:
            if mode is Mode.TRAIN and self._interval > 1:
                self._number_others(about, taken)
            return
        if mode is Mode.TRAIN and not self._told and self._backend.reads_data(args):
            self._told = True
            self.port.records.current().add_fact(facts.HiddenWaits("Model.fit"), _WAITS.reason)
        logs = {} if mode is Mode.PREDICT else self._backend.logs(result)
        self._steps.returned(self._backend.unfinished(logs))
        numbers = about.numbers(mode, logs)
        self._steps.end(numbers, about.rate, about.weight(mode), model=about.number)
        if mode is Mode.TRAIN:
            if self._interval > 1:
                self._number_others(about, taken)
            self._fits.after_step(function.model)

    def _of(self, model: Any) -> KerasModel:
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = KerasModel(model, self._numbers.new(model), self._backend)
        return found

    def _is_watched(self, model: Any) -> bool:
        return self._chosen is None or model in self._chosen

    # -- functions of Keras ------------------------------------------------------------------------------------------

    def _wrap(self, name: str, ended: Callable[[Any], None]) -> None:
        original = getattr(keras.Model, name)
        existed = name in vars(keras.Model)
        self._originals[name] = original
        after = self.port.guarded(ended)

        def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            if result is not RAISED:
                after(args[0])

        wrapped = around(original, lambda args, kwargs: True, end)
        setattr(keras.Model, name, wrapped)

        def restore() -> None:
            if vars(keras.Model).get(name) is wrapped:
                if existed:
                    setattr(keras.Model, name, original)
                else:
                    delattr(keras.Model, name)

        self.port.detach_with(restore)

    def _made(self, name: str, model: Any) -> None:
        """Keras has made a function, or had it already."""
        if not self._is_watched(model):
            return
        if name == "train":
            about = self._of(model)
            about.read_settings()
            if self.port.resumption.open:
                self.port.resumption.settle(about.updates, "optimizer")
        attribute = f"{name}_function"
        function = getattr(model, attribute)
        if isinstance(function, WatchedFunction) or function is None:
            return
        twin = functools.partial(self._twin, name, reader_on_device(model))
        watched = WatchedFunction(self.execute, model, self._of(model), _MODES[name], function, twin)
        setattr(model, attribute, watched)
        if keras.distribution.distribution() is not None:
            watched.make_twin()  # now: Keras reads where the variables are, and while they are trained they are nowhere

    def _twin(self, name: str, reads: ReducingArrays | None, model: Any) -> FunctionTwin:
        room, reads = self.port.config.capture_memory_bytes, reads or reader_on_device(model)
        values = StepValues(model, self._backend, self._of(model).number, room, self.port.plan, reads)
        attribute, step = f"{name}_function", f"{name}_step"
        compiled = not model.run_eagerly and (self._backend.name == "tensorflow" or bool(model.jit_compile))
        repeated = repetition(self._backend.name, model) if compiled else None
        collecting_step = values.around(getattr(model, step))
        if repeated is not None:
            collecting_step = repeated.observed(collecting_step)
        of = weakref.ref(model)

        @contextmanager
        def collecting() -> Iterator[None]:
            # Past Keras, which tracks what is set on a model. Some releases look the step up as they make the function,
            # others as they trace it.
            own = vars(of())
            existing = own.get(step)
            own[step] = collecting_step
            try:
                yield
            finally:
                if existing is None:
                    own.pop(step, None)
                else:
                    own[step] = existing

        title = f"{type(model).__name__}.{step}"
        failed: Exception | None = None
        if compiled and not self._backend.compiles_alike:
            failed = NotImplementedError(_COMPILED.reason)
        function = before = getattr(model, attribute)
        if failed is None:
            try:
                with collecting(), nullcontext() if repeated is None else repeated.making():
                    self._originals[f"make_{name}_function"](model, force=True)
                function = getattr(model, attribute)
            except Exception as error:  # of the script, whose model may make its functions itself
                failed = error
            finally:
                setattr(model, attribute, before)
        twin = FunctionTwin(values, function, collecting, self._backend, repeated, self.port, title)
        if failed is not None:
            twin.give_up(failed)
        return twin

    def _reset(self, model: Any) -> None:
        if model in self._models:
            self._models[model].reset()

    def _restore(self) -> None:
        for model in list(self._models):
            for name in _MODES:
                function = vars(model).get(f"{name}_function")
                if isinstance(function, WatchedFunction):
                    setattr(model, f"{name}_function", function.plain)


def _twin_of(function: WatchedFunction) -> FunctionTwin:
    return function.twin
