"""Steps that are only counted: the calls of models and the updates that repeat, in a cycle of one or several steps.

While steps are observed, :class:`Cycle` learns in which order models are called and optimizers step. A cycle may be
one step with micro-batches or a teacher, or several steps, as those of a GAN. In a :class:`Rest` nothing is recorded;
each call and each update is compared with the next of the cycle, and the first that differs ends the rest.

Where the script updates the model itself, the version of a parameter shows it as the model is called again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from time import monotonic_ns
from typing import Any, NamedTuple

from torch import Tensor, is_grad_enabled, nn
from torch.optim import Optimizer

from watchglass.capture.pytorch.fast_path.calls_ahead import CallAhead
from watchglass.record import StepClock

#: Longest cycle, in events.
_LONGEST = 256
#: Most calls of a step beyond those of others; with more of them no update is expected any more.
_MOST_EXTRA = 64


class Happened(NamedTuple):
    """The call of an outermost module, or the update by an optimizer, as their hooks report it."""

    of: weakref.ref[Any]  #: Weak reference to the module or optimizer.
    grad: bool  #: Of a call, whether it is made with gradients.
    training: bool  #: Of a call, whether the module is in training mode.
    nested: bool  #: Of a call, whether it is made inside another.
    opens: bool  #: Whether a TRAIN step opened with it.
    model: int  #: Of an update, number of the model of its step; -1 for a call.
    ends: bool = False  #: Of an update, whether it is the last of its step.
    ahead: bool = False  #: Whether it is a call without gradients between two steps.


class Cycle:
    """Learns what repeats, from all calls and updates on the full path.

    Args:
        clock: Numbers the steps.
        habit: Steps of one pattern after which it is known.
    """

    def __init__(self, clock: StepClock, habit: int) -> None:
        self._clock, self._habit = clock, habit
        self._events: list[Happened] = []
        self._period = self._alike = 0
        self._found: tuple[Happened, ...] | None = None
        # Numbers of steps as the last event was over.
        self._train = self._others = 0

    def forget(self) -> None:
        """What happened in this step must be observed each time."""
        self._events.clear()
        self._period = self._alike = 0

    def saw(
        self, of: Any, *, grad: bool = False, training: bool = False, nested: bool = False, model: int = -1
    ) -> None:
        """A call has begun, or an update is over, and has been observed in full."""
        train, before = self._clock.next_train_step, self._train
        opens = train != before and (grad or model >= 0)
        event = Happened(weakref.ref(of), grad, training, nested, opens, model)
        if event.opens or model >= 0:
            # By now it is known which calls were evaluations: they are never a part of a cycle.
            others = self._clock.last_step - train
            if others != self._others or train < before:
                self.forget()
            self._train, self._others = train, others
        events, period, self._found = self._events, self._period, None
        events.append(event)
        if period and len(events) > period and _same(event, events[-1 - period]):
            self._alike += 1
            return
        self._alike = 0
        distances = range(1, min(len(events), _LONGEST + 1))
        self._period = next((back for back in distances if _same(event, events[-1 - back])), 0)
        if len(events) > 4 * _LONGEST:
            del events[: -2 * _LONGEST]

    def found(self, more: int = -2) -> tuple[Happened, ...]:
        """The events that come next if all goes on, those of whole steps; empty where they are not known.

        Args:
            more: How many more times they must have been repeated than steps make a pattern.
        """
        period = self._period
        if not period or self._alike < (self._habit + more) * period:
            return ()
        if self._found is not None:
            return self._found
        events, between = self._events[-period:], False
        # Twice, as the first update may be the last of the step that the end of the list begins.
        for at in [*range(period - 1, -1, -1)] * 2:
            event = events[at]
            if event.opens or event.model >= 0:
                events[at] = event._replace(ends=event.model >= 0 and between)
                between = event.opens
            else:
                events[at] = event._replace(ahead=between and not event.grad)
        by_script = all(event.model < 0 for event in events)
        whole = events[0].opens if by_script else events[-1].ends
        self._found = tuple(events) if whole else ()
        return self._found


def _same(one: Happened, other: Happened) -> bool:
    # References to one object are one object; a class of the script may compare in its own way.
    return one.of is other.of and one[1:] == other[1:]


class Rest:
    """Counts steps, as long as their events are those of a cycle. For the training thread.

    A step with more calls of the model than others is the last one of the rest.

    Args:
        held: Gets the calls ahead of a step, until its model is called.
        helped: Called then; raises nothing.

    Attributes:
        left: Steps still to come.
        steps: Those that are over.
    """

    def __init__(self, held: Callable[[], list[CallAhead]], helped: Callable[[], None]) -> None:
        self._held, self._helped = held, helped
        self._events: Sequence[Happened] = ()
        self._place = self._last = self._extra = 0
        self._holds = False
        self.left = self.steps = 0
        # Where the script updates: a parameter, and its version as the last step began.
        self._parameter: Callable[[], Tensor | None] | None = None
        self._version = 0
        # Whether a call of the step after the last update has passed.
        self._called = False

    def begin(
        self, events: Sequence[Happened], steps: int, parameter: Callable[[], Tensor | None] | None = None
    ) -> None:
        """Count up to so many steps, from the first of these events on.

        Args:
            events: The cycle.
            steps: The most steps.
            parameter: Returns a parameter whose version shows the updates by the script; None for optimizers.
        """
        self._events, self._place, self._extra, self._called = events, 0, 0, False
        self._last, self._holds = len(events) - 1, any(event.ahead for event in events)
        self.left, self.steps, self._parameter = steps, 0, parameter
        if parameter is not None:
            # The first call shows the update of the step before, which is no part of the rest.
            self.left, self.steps, self._version = steps + 1, -1, -1

    def follows(self, root: nn.Module, arguments: Any, kwargs: Any) -> bool:
        """Whether this call is a part of a step of the rest; runs no code that can fail."""
        # Written out, as it is called at every call of a model.
        if self._parameter is not None:
            self._updated()
        place = self._place
        of, grad, training, _, opens, _, _, ahead = self._events[place]
        if not self.left:
            return False
        if of() is not root or is_grad_enabled() is not grad or root.training is not training:
            return self._is_extra(root)
        if opens and self._called and self._parameter is not None:
            return self._is_extra(root)
        if ahead:
            self._held().append(CallAhead(root, arguments, kwargs, monotonic_ns()))
        elif opens and self._holds:
            self._helped()
        self._place = place + 1 if place < self._last else 0
        self._called = True
        return True

    def _is_extra(self, root: nn.Module) -> bool:
        """Whether this is one more call of a model in a step: what the loss of this step is, is not known."""
        grad, training = is_grad_enabled(), root.training
        known = any(
            of() is root and grad and with_grad and mode is training for of, with_grad, mode, *_ in self._events
        )
        if not known or not self._called or self._held() or self._extra >= _MOST_EXTRA:
            return False
        self._extra += 1
        self.left = 1
        while self._parameter is None and not self._events[self._place].ends:
            self._place += 1
        return True

    def updates(self, optimizer: Optimizer) -> bool:
        """Whether an update by this optimizer is the next event; runs no code that can fail."""
        place = self._place
        of, _, _, _, _, _, ends, _ = self._events[place]
        if of() is not optimizer or not self.left:
            return False
        self._place = place + 1 if place < self._last else 0
        self._called = True
        if ends:
            self._over()
        return True

    def _over(self) -> None:
        self.steps += 1
        self.left -= 1
        self._called = False

    def _updated(self) -> bool:
        """Whether the script has updated since this was asked last: then a step is over."""
        tensor = None if self._parameter is None else self._parameter()
        if tensor is None or tensor._version == self._version:
            return False
        self._version, self._place = tensor._version, 0
        self._over()
        return True

    def end(self) -> tuple[list[Happened], bool, Optimizer | None]:
        """The rest is over.

        Returns:
            The calls of the open step so far; whether backwards run through all of these, of several; the optimizer
            that has stepped last.
        """
        by_script = self._parameter is not None
        before, after = self._events[: self._place], self._events[self._place :]
        ends = [at + 1 for at, event in enumerate(before) if event.ends]
        calls = before[max(ends, default=0) :]
        if by_script and not before:
            calls, after = self._events, ()
        if by_script:
            self._updated()
        last = next((event.of() for event in reversed([*after, *before]) if event.model >= 0), None)
        if not self._called or self._extra >= _MOST_EXTRA:
            return [], False, last
        rest = next((at for at, event in enumerate(after) if event.ends), len(after))
        made, coming = ([each for each in part if each.grad and not each.nested] for part in (calls, after[:rest]))
        return made, len(made) + len(coming) > 1, last

    def models(self) -> tuple[list[int], int]:
        """The models of the steps that are over, where optimizers update, and how many steps a cycle has."""
        ended = [event.model for event in self._events if event.ends]
        return list(islice(cycle(ended), max(0, self.steps))), len(ended)
