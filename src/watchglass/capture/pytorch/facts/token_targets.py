"""Fact ``token_targets``: how the class labels of a loss lie to the tokens that the model embeds, and who sees whom.

A language model predicts the token after each one: its labels are the tokens moved by one. Labels that were not moved,
or moved twice, are a fault that no curve shows, and so is attention that sees the token which is to be predicted. Both
are exact relations of numbers that every step has, so few looks suffice.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from torch import Tensor

from watchglass.capture.planning.sketch_pace import is_power_of_two
from watchglass.capture.port import Port
from watchglass.capture.pytorch.events import BackwardCall, ForwardCall, LossCall, ModuleCall
from watchglass.capture.pytorch.facts.attention_masks import SeenPositions
from watchglass.capture.pytorch.facts.copies import Copies
from watchglass.capture.pytorch.facts.token_labels import TokenLabels
from watchglass.record import DeferredFact, Forward, OpenStep
from watchglass.records import Mode, ModuleKind, facts

_log = logging.getLogger("watchglass")
#: Steps of a model that are all looked at; after them the 4th, 8th, 16th ...
_ALL = 3
#: Calls of recurrent modules that are noted.
_MOST_CALLS = 256


class _Look:
    """One forward that is looked at."""

    def __init__(self, forward: Forward, port: Port, carefully: Callable[[Callable[[], None]], None]) -> None:
        self.forward = forward
        self.copies = Copies()
        self.labels = TokenLabels(self.copies)
        self.attention = SeenPositions(port, self.copies, carefully)
        self.recurrent: list[bool] = []
        #: Whether a loss has been computed: what is called later makes no part of its predictions.
        self.closed = False

    def close(self, predictions: Tensor) -> None:
        """The first loss has been computed."""
        self.closed = True
        self.attention.close()
        self.attention.follow(predictions)
        self.copies.send()
        self.forward.records.add_fact(DeferredFact(facts.TokensAndLabels, self._fact), "loss")

    def _fact(self) -> facts.TokensAndLabels:
        """The fact; for the recorder's thread."""
        return replace(self.labels.fact(), attention=self.attention.seen(), recurrent=tuple(self.recurrent))


class TokenTargets:
    """Notes the tokens that embeddings take, who sees whom in attention, and the labels of loss functions."""

    def __init__(self, port: Port, leave: ExitStack) -> None:
        self._port = port
        # By model: captured steps so far.
        self._captures: dict[int, int] = {}
        # Models that embed no tokens.
        self._others: set[int] = set()
        # Whether the first forward of the present step is looked at.
        self._due = False
        self._look: _Look | None = None
        #: An entry of :attr:`Events.module_listeners`.
        self.module_listeners = (lambda: self._due, self._called)
        leave.callback(self._end)

    def step_began(self, step: OpenStep) -> None:
        """A captured step has opened."""
        self._end()
        number = self._captures[step.model] = self._captures.get(step.model, 0) + 1
        self._due = step.model not in self._others and (number <= _ALL or is_power_of_two(number))

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward begins."""
        self._end()
        if not self._due or call.step.mode is not Mode.TRAIN or not call.forward.grad:
            return
        self._due = False
        self._look = _Look(call.forward, self._port, self._carefully)

    def forward_ended(self, call: ForwardCall) -> None:
        """It has ended; its loss may follow."""
        look = self._look
        if look is None:
            return
        look.attention.close()
        if look.forward is call.forward and not look.labels.embedded:
            self._end()
            if self._captures.get(call.forward.model, 0) >= _ALL:
                self._others.add(call.forward.model)

    def backward_began(self, call: BackwardCall) -> None:
        """All losses are computed: keep nothing of the forward."""
        self._end()

    def _end(self) -> None:
        look, self._look = self._look, None
        if look is not None:
            look.attention.close()

    def _carefully(self, look: Callable[[], None]) -> None:
        """Attention and losses have more forms than are known here: an unknown one ends the look."""
        try:
            look()
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            _log.debug("watchglass: tokens and labels were not read: %s: %s", type(error).__name__, error)
            self._end()

    def _called(self, call: ModuleCall) -> None:
        look = self._look
        if look is None or look.closed:
            return
        if call.place.kind is ModuleKind.RECURRENT and len(look.recurrent) < _MOST_CALLS:
            look.recurrent.append(bool(getattr(call.module, "bidirectional", False)))
        if call.place.kind is ModuleKind.EMBEDDING:
            self._carefully(functools.partial(look.labels.embed, call))

    def loss_computed(self, call: LossCall) -> None:
        """A loss function has returned."""
        look = self._look
        if look is not None and call.forward is look.forward and call.training and look.labels.embedded:
            self._carefully(functools.partial(self._compare, look, call))

    @staticmethod
    def _compare(look: _Look, call: LossCall) -> None:
        if look.labels.compare(call) and not look.closed:
            look.close(call.predictions)
