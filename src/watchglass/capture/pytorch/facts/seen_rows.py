"""Series ``rows_seen_in_training`` of evaluations: which of their batches are training data."""

from __future__ import annotations

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.facts.input_sketches import Sample
from watchglass.capture.facts.seen_rows import MOST_NUMBERS, MOST_ROWS, MOST_TOKENS, SeenRows
from watchglass.capture.planning.sketch_pace import SketchPace, sketch_spacing
from watchglass.capture.pytorch.events import ForwardCall
from watchglass.capture.pytorch.facts.copies import row_sample
from watchglass.capture.pytorch.step.module_capture import first_tensor
from watchglass.record import DeferredFact
from watchglass.records import SEEN_ROWS, Mode, Role, facts

#: Batches of an evaluation of which each is examined; later ones at the pace of sketches.
_EACH = 1024


class SeenRowsFact:
    """Remembers rows of training batches, and looks for them in evaluations."""

    def __init__(self) -> None:
        self._seen = SeenRows()
        self._pace = SketchPace()
        # A model that is never trained, such as an average, may be called for its outputs alone.
        self._trained: set[int] = set()
        # The training step of the evaluation, and its batches so far.
        self._evaluation = -1, 0

    def forward_began(self, call: ForwardCall) -> None:
        """Note the rows of a captured training step."""
        step = call.step
        if step.mode is Mode.TRAIN:
            self._trained.add(call.forward.model)
        if step.mode is not Mode.TRAIN or not self._pace.due(step.mode, call.forward.model, step.mode_step):
            return
        if (taken := _rows(call)) is not None:
            self._seen.note(taken)
            noted = self._seen.noted
            # It makes no fact, but is done in the recorder's thread.
            later = DeferredFact(facts.RowsSeen, lambda: self._seen.hash_up_to(noted))
            call.forward.records.add_fact(later, "forward")

    def each_evaluated(self, call: ForwardCall) -> None:
        """Look for the rows of an evaluation's batch."""
        noted = self._seen.noted
        if not noted or call.forward.model not in self._trained:
            return
        after, number = self._evaluation
        number = number + 1 if after == call.step.train_step else 0
        self._evaluation = call.step.train_step, number
        if number >= _EACH and number % sketch_spacing(number):
            return
        # A single row is seldom a batch: an agent that acts, a text that is continued.
        if (taken := _rows(call)) is not None and taken.rows > 1:
            share = DeferredNumbers(lambda: self._seen.share(taken, noted), taken.size)
            call.forward.records.if_evaluated.append((SEEN_ROWS, Role.METRIC, float(taken.rows), share))


def _rows(call: ForwardCall) -> Sample | None:
    tensor = first_tensor(call.arguments, call.kwargs)
    return None if tensor is None else row_sample(tensor, MOST_ROWS, MOST_NUMBERS, MOST_TOKENS)
