"""Models and optimizers that take turns, as those of a GAN do: each gets its captured steps.

A plan counts the steps of a model. Unless a loop tells it, the model of a TRAIN step is known only at its end. As a
step opens, it is then guessed from the step that followed the same steps last time, or from the model that is called.
After a wrong guess a due step may go by: then the next step of that model is captured in its place.

Where two optimizers of one model take turns, every even interval would meet only one of them. So after a captured step
the first step of each other optimizer is captured as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

#: Longest row of steps of one kind that is counted, and most kinds of steps.
_LONGEST_RUN, _MOST_KINDS = 1024, 64

#: A model and the optimizers that updated it.
_Kind = tuple[int, frozenset[int]]


@dataclass(slots=True)
class _Model:
    """State of one model."""

    steps: int = 0  #: Number of its TRAIN steps that are over.
    kinds: set[_Kind] = field(default_factory=set)  #: Kinds of its steps so far.
    last: _Kind | None = None  #: Kind of its last step; None before the first.
    #: Whether an optimizer updated it again after another one had. An optimizer that replaces another permanently, as
    #: in the next phase of a run, does not alternate with it.
    alternates: bool = False
    planned: int = -1  #: The last step that the plan named, by its own number; -1 before the first.
    captured: set[_Kind] = field(default_factory=set)  #: Kinds of the steps captured since.
    owed: int = -1  #: A step that was due and went by, by its own number; -1 for none.


class AlternatingOptimizers:
    """Decides which TRAIN steps are captured. For one thread.

    Args:
        due: The plan's answer for a step of a model, by its number among those of the model, and for the number of the
            model; called again for an earlier step that a later one replaces.
        next_due: The first step of a model from a given one on that the plan names, in the same form.
    """

    def __init__(self, due: Callable[[int, int], bool], next_due: Callable[[int, int], int]) -> None:
        self._due = due
        self._next_due = next_due
        self._models: defaultdict[int, _Model] = defaultdict(_Model)
        self._total = 0
        # Predictions: the kind that last followed a number of steps of one kind, or a kind and the call of a model.
        self._after_run: dict[tuple[_Kind | None, int], _Kind] = {}
        self._after_call: dict[tuple[_Kind | None, int], _Kind] = {}
        self._last: _Kind | None = None
        self._run = 0
        self._called: int | None = None
        self._expected = 0
        # The due step of the expected model that the open step replaces.
        self._paid = -1
        # The TRAIN step that is open, which is not counted yet.
        self._open: int | None = None
        #: The model of the TRAIN step that opens next, where a loop knows it; for that step alone.
        self.told: int | None = None

    def opens(self, mode_step: int, called: int | None) -> bool:
        """Whether the TRAIN step that opens now is captured.

        Args:
            mode_step: Its number.
            called: Number of the model whose call opens it, None where none does.
        """
        self._called, self._paid, self._open = called, -1, None
        kind = self._after_run.get((self._last, self._run))
        if kind is None and called is not None:
            kind = self._after_call.get((self._last, called))
        told, self.told = self.told, None
        if told is not None:
            kind, self._expected = None, told
        elif kind is not None:
            self._expected = kind[0]
        elif called is not None:
            self._expected = called
        elif self._last is not None:
            self._expected = self._last[0]
        model = self._models[self._expected]
        own = self.own_step(self._expected, mode_step)
        self._open = mode_step
        if self._due(own, self._expected):
            model.planned, model.owed = own, -1
            model.captured.clear()
            return True
        if model.owed >= 0:
            self._paid = model.planned = model.owed
            model.owed = -1
            model.captured.clear()
            return self._due(model.planned, self._expected)
        if not model.alternates or model.planned < 0 or kind is None or kind in model.captured:
            return False
        return self._due(model.planned, self._expected)

    def own_step(self, model: int, mode_step: int) -> int:
        """Number of a TRAIN step among those of a model; an earlier step that is open counts as one of them.

        The steps before this process are the first model's.
        """
        known = self._models.get(model)
        before = 0 if known is None else known.steps
        first = next(iter(self._models), model)
        if model == first:
            return before + mode_step - self._total
        return before + (self._open is not None and self._open < mode_step)

    def next_due(self, model: int, mode_step: int) -> int:
        """The first TRAIN step from ``mode_step`` on that the plan names, if all of them are of one model."""
        own = self.own_step(model, mode_step)
        return self._next_due(own, model) - own + mode_step

    def ended(self, step_model: int, optimizers: Iterable[int], mode_step: int, *, captured: bool) -> int:
        """A TRAIN step of a model was updated by these; returns its number among those of the model."""
        kind = (step_model, frozenset(optimizers))
        own = self.own_step(step_model, mode_step)
        model = self._models[step_model]
        if self._expected != step_model and self._paid >= 0:
            self._models[self._expected].owed = self._paid
        if captured:
            model.captured.add(kind)
            model.owed = -1
        elif self._expected != step_model and self._next_due(own, step_model) == own:
            model.owed = own
        if len(model.kinds) > _MOST_KINDS:
            model.kinds.clear()
            model.captured.clear()
        model.alternates |= kind != model.last and kind in model.kinds
        model.kinds.add(kind)
        model.last = kind
        if len(self._after_run) > _LONGEST_RUN * _MOST_KINDS:
            self._after_run.clear()
            self._after_call.clear()
        self._after_run[self._last, self._run] = kind
        if self._called is not None:
            self._after_call[self._last, self._called] = kind
        self._run = min(self._run + 1, _LONGEST_RUN) if kind == self._last else 1
        self._last, self._open = kind, None
        self.passed(step_model, 1)
        return own

    def passed(self, model: int, steps: int) -> None:
        """Count TRAIN steps of a model of which none was captured, each like the one before."""
        self._models[model].steps += steps
        self._total += steps
