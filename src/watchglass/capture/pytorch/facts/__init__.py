"""Facts of a PyTorch training run: observations other than tensors. docs/facts.md lists them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from watchglass.capture.planning.sketch_pace import is_power_of_two
from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.events import Events
from watchglass.capture.pytorch.facts.batches import Batches
from watchglass.capture.pytorch.facts.call_order import CallOrderFact
from watchglass.capture.pytorch.facts.clips import ClipCalls
from watchglass.capture.pytorch.facts.gradient_noise import GradientNoiseFact
from watchglass.capture.pytorch.facts.graph_looks import GraphLooks
from watchglass.capture.pytorch.facts.judged_rows import JudgedRows
from watchglass.capture.pytorch.facts.leftover_gradients import Leftovers
from watchglass.capture.pytorch.facts.loss_calls import LossCallFact
from watchglass.capture.pytorch.facts.loss_scales import LossScales
from watchglass.capture.pytorch.facts.memory import Allocator, HeldMemory
from watchglass.capture.pytorch.facts.model_structure import MembershipFact, TrainingFlagsFact
from watchglass.capture.pytorch.facts.object_names import ObjectNames
from watchglass.capture.pytorch.facts.rank_gradients import RankGradients
from watchglass.capture.pytorch.facts.running_statistics import RunningStatistics
from watchglass.capture.pytorch.facts.saved_checkpoints import SavedCheckpoints
from watchglass.capture.pytorch.facts.seen_rows import SeenRowsFact
from watchglass.capture.pytorch.facts.token_targets import TokenTargets
from watchglass.capture.pytorch.facts.unheld_parameters import UnheldParameters
from watchglass.capture.pytorch.facts.update_samples import UpdateSampleFact
from watchglass.capture.pytorch.modules.models import Models
from watchglass.config import chosen_facts
from watchglass.records import SEEN_ROWS

__all__ = ["Facts"]

#: Rests after which the calls of every step are observed again each time; later only at powers of two. Their wrappers
#: sit on base classes of all modules and optimizers. Python drops its caches for these whenever such a class changes;
#: after some hundred changes it caches nothing more.
_OFTEN = 8
_CALLS = frozenset({"calls"})


class Facts:
    """The parts that record facts, those of them that the configuration asks for.

    Made after the adapter listens to :mod:`~watchglass.capture.pytorch.public_calls`: what wraps the same function last
    is restored first.
    """

    def __init__(self, port: Port, models: Models, events: Events) -> None:
        self._port = port
        self._models = models
        self._events = events
        self._subjects = ObjectNames()
        # By the kinds of facts of a part: the part, and a function that ends its listening.
        self._parts: dict[frozenset[str], tuple[Any, ExitStack]] = {}
        self._resting = False
        self._wakes = 0
        port.detach_with(self._leave)
        calls.FACTS.rest(self, False)
        self._configure()
        port.on_configured.append(self._configure)
        events.resting.append(self._rest)

    def _rest(self, on: bool) -> None:
        order = self._parts.get(_CALLS)
        if not on:
            self._wakes += 1
            if self._wakes <= _OFTEN or is_power_of_two(self._wakes):
                self._sleep(False)
        elif self._resting:
            return
        elif order is not None and order[0].rounds.ends:
            order[0].rounds.when_over = functools.partial(self._sleep, True)
        else:
            self._sleep(True)

    def _sleep(self, on: bool) -> None:
        """Stop observing the calls of every step, or observe them again."""
        order = self._parts.get(_CALLS)
        if order is not None:
            order[0].rounds.when_over = None
        if on != self._resting:
            self._resting = on
            calls.FACTS.rest(self, on)
            if order is not None and not on:
                order[0].rounds.begin_again()

    def _configure(self) -> None:
        """Make the parts that are wanted and missing, and drop the others."""
        chosen = chosen_facts(self._port.config.facts)
        wanted = {kinds & chosen: make for kinds, make in self._makers().items() if kinds & chosen}
        for kinds in self._parts.keys() - wanted.keys():
            self._parts.pop(kinds)[1].close()
        for kinds, make in wanted.items():
            if kinds not in self._parts:
                leave = ExitStack()
                part = make(leave, kinds)
                leave.callback(self._events.add(part))
                self._parts[kinds] = part, leave

    def _makers(self) -> dict[frozenset[str], Callable[[ExitStack, frozenset[str]], Any]]:
        """By the kinds of facts of a part: makes it, for those of the kinds that are wanted."""
        port, models, subjects = self._port, self._models, self._subjects
        return {
            _CALLS: lambda leave, kinds: CallOrderFact(port, subjects, leave),
            frozenset({"clip"}): lambda leave, kinds: ClipCalls(port, leave),
            frozenset({"loss_scale"}): lambda leave, kinds: LossScales(port, leave),
            frozenset({"checkpoint"}): lambda leave, kinds: SavedCheckpoints(port, models, leave),
            frozenset({"leftover_gradients"}): lambda leave, kinds: Leftovers(port, subjects, leave),
            frozenset({"training_flags"}): lambda leave, kinds: TrainingFlagsFact(models),
            frozenset({"membership"}): lambda leave, kinds: MembershipFact(port, models, subjects, leave),
            frozenset({SEEN_ROWS}): lambda leave, kinds: SeenRowsFact(),
            frozenset({"token_targets"}): lambda leave, kinds: TokenTargets(port, leave),
            frozenset({"allocator"}): lambda leave, kinds: Allocator(),
            frozenset({"held_memory"}): lambda leave, kinds: HeldMemory(),
            frozenset({"loss_call"}): lambda leave, kinds: LossCallFact(),
            frozenset({"output_sketch", "target_sketch"}): lambda leave, kinds: JudgedRows(models, kinds),
            frozenset({"update_sample"}): lambda leave, kinds: UpdateSampleFact(),
            frozenset({"gradient_noise"}): lambda leave, kinds: GradientNoiseFact(port, models, leave),
            frozenset({"rank_gradients"}): lambda leave, kinds: RankGradients(port, models, leave),
            frozenset({"running_statistics"}): lambda leave, kinds: RunningStatistics(models),
            frozenset({"loss_graph", "forward_graph", "unheld_parameters"}): lambda leave, kinds: GraphLooks(
                models, kinds, UnheldParameters(port, models, subjects, leave)
            ),
            frozenset({"batch", "data_loader", "input_sketch"}): lambda leave, kinds: Batches(
                port, models, kinds, leave
            ),
        }

    def _leave(self) -> None:
        parts, self._parts = self._parts, {}
        # Each is left, although another fails.
        with ExitStack() as leave:
            leave.callback(calls.FACTS.rest, self, True)
            for _, part in parts.values():
                leave.push(part)
