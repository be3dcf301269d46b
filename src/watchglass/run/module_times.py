"""The time that the modules of a worker's models took, in the training steps in which it was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from watchglass.records import Mode, StepModules, UntimedModules, count, read_facts
from watchglass.run.table import needed
from watchglass.run.worker import Worker

if TYPE_CHECKING:
    import pandas

#: Number of the model, and path of the module.
_Key = tuple[int, str]


@dataclass(frozen=True)
class ModuleTime:
    """The mean time of one module in a training step that calls its model, in seconds.

    Attributes:
        module: Its path; "" for the first model, ``"model_2"`` and ``"model_2.fc1"`` in a further one.
        type: Its type.
        calls: Its calls per step.
        self_forward_s: Its forwards, without those of its submodules.
        self_backward_s: Its backwards, the same.
        forward_s: Its forwards with those of its submodules.
        backward_s: Its backwards, the same.
    """

    module: str
    type: str
    calls: float
    self_forward_s: float
    self_backward_s: float
    forward_s: float
    backward_s: float

    @property
    def self_s(self) -> float:
        """Forwards and backwards, without those of its submodules."""
        return self.self_forward_s + self.self_backward_s


@dataclass(frozen=True, eq=False)
class ModuleTimes:
    """The times of modules in some training steps of one worker.

    Attributes:
        worker: Name of the worker.
        steps: The timed TRAIN steps, int64[n], ascending.
        rows: Modules with their means over those of these steps that called their model, m in the order of their first
            calls.
        forward: Time of the forwards in each step without those of submodules, in seconds, float64[n, m]; 0 in a step
            that did not call the module.
        backward: The same of the backwards.
        on_device: Whether these are times of a device, and not of the host.
        untimed: Models whose modules were to be timed and are not, such as compiled ones, with the reason.
    """

    worker: str
    steps: NDArray[np.int64]
    rows: tuple[ModuleTime, ...]
    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    on_device: bool
    untimed: tuple[UntimedModules, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shares(self) -> NDArray[np.float64]:
        """Share of each module in the time of all modules in these steps, 0 to 1, float64[m]; NaN without any time."""
        spent = (self.forward + self.backward).sum(0)
        with np.errstate(invalid="ignore"):
            return np.asarray(spent / spent.sum())

    def __getitem__(self, module: str) -> ModuleTime:
        """The means of the module with this path.

        Raises:
            KeyError: It was not called in these steps.
        """
        for row in self.rows:
            if row.module == module:
                return row
        raise KeyError(module)

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with the path as its index and a column for each other attribute of :class:`ModuleTime`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        names = list(ModuleTime.__dataclass_fields__)
        return needed("pandas").DataFrame([asdict(row) for row in self.rows], columns=names).set_index("module")

    def __repr__(self) -> str:
        modules, steps = count(len(self), "module"), count(len(self.steps), "step")
        untimed = "".join(f"; {each.model} not timed: {each.reason}" for each in self.untimed)
        return f"ModuleTimes({modules} in {steps} of {self.worker!r}{untimed})"


def module_times_of(worker: Worker) -> ModuleTimes:
    """See :meth:`Run.module_times`."""
    numbers = worker.numbers(Mode.TRAIN)
    found: list[tuple[int, StepModules]] = []
    for attempt, tables in worker.attempts.items():
        of_steps = [fact for fact in tables.facts(kind=StepModules.KIND) if fact.global_step >= 0]
        read = [(fact.global_step, modules) for fact in of_steps for modules in read_facts([fact], StepModules)]
        steps, index = numbers.of_global(attempt, np.array([step for step, _ in read], np.uint64))
        found += [(step, read[at][1]) for step, at in zip(steps.tolist(), index, strict=True)]
    found.sort(key=lambda each: each[0])
    types: dict[_Key, str] = {}
    for _, timed in found:
        types.update(((each.model, each.module), each.module_type) for each in timed.modules)
    column = {key: at for at, key in enumerate(types)}
    forward, backward, calls = (np.zeros((len(found), len(types))) for _ in range(3))
    for row, (_, timed) in enumerate(found):
        for each in timed.modules:
            at = column[each.model, each.module]
            forward[row, at] += each.forward_s
            backward[row, at] += each.backward_s
            calls[row, at] += each.calls
    # A model of a GAN, or of a fold, is called in some of the steps only.
    called = {of: sum(any(each.model == of for each in timed.modules) for _, timed in found) for of, _ in types}
    steps_of = np.array([called[of] for of, _ in types])
    means = [values.sum(0) / steps_of for values in (calls, forward, backward)]
    on_device = bool(found) and found[-1][1].on_device
    rows = tuple(_with_submodules(key, types[key], column, means) for key in types)
    timed_steps = np.array([step for step, _ in found], np.int64)
    return ModuleTimes(worker.name, timed_steps, rows, forward, backward, on_device, untimed_models(worker))


def untimed_models(worker: Worker) -> tuple[UntimedModules, ...]:
    """The models of a worker whose modules are not timed although that was asked for, each once."""
    return tuple(dict.fromkeys(read_facts(worker.facts(UntimedModules.KIND), UntimedModules)))


def _with_submodules(
    key: _Key, module_type: str, column: dict[_Key, int], means: list[NDArray[np.float64]]
) -> ModuleTime:
    calls, forward, backward = means
    model, path = key
    inside = f"{path}." if path else ""
    own = column[key]
    below = [at for (of, other), at in column.items() if at == own or (of == model and other.startswith(inside))]
    return ModuleTime(
        path, module_type, float(calls[own]), float(forward[own]), float(backward[own]),
        float(forward[below].sum()), float(backward[below].sum()),
    )  # fmt: skip
