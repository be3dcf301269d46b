"""Divides the time of the training thread among the phases of its steps."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns, thread_time_ns
from typing import Any

from watchglass.record import CapturedRecords
from watchglass.records import PHASES, Row, RowKind, StepPhase

# Plain numbers: this runs in every step, and looking up a member of an enumeration costs more than comparing it.
DATA, PREPARE, COPY, FORWARD, BACKWARD, UPDATE, COMPUTE, OTHER = (int(phase) for phase in StepPhase)
#: Since the end of a backward. What follows shows its phase: UPDATE if an update ends, else OTHER.
AFTER_BACKWARD = len(StepPhase)
#: Before the first mark: this time belongs to no step.
_BEFORE_ALL = AFTER_BACKWARD + 1
#: Since a call that has returned results which are still computed: the script waits for them, or works meanwhile.
_AFTER_CALL = _BEFORE_ALL + 1
_NOTHING = [0] * (_AFTER_CALL + 1)
#: The phases of a step where they are not recorded.
NO_PHASES = (0,) * AFTER_BACKWARD


class StepPhases:
    """Cuts the time of the training thread where phases begin, so that the phases of steps add up to all of it.

    It reads a clock and nothing else, and never waits for a device: the times are those of the host. For the training
    thread.

    Args:
        now_ns: Monotonic clock.
    """

    def __init__(self, now_ns: Callable[[], int] = monotonic_ns) -> None:
        #: The clock.
        self.now_ns = now_ns
        #: An array that the latest step has returned, if its framework computes after the call; None if it does not.
        self.returned: Any = None
        self._at = _BEFORE_ALL
        self._since_ns = 0
        # The end of the last copy. A copy inside another one counts once.
        self._copied_ns = 0
        self._spent_ns = _NOTHING.copy()
        # Processor time of this thread at the end of such a call.
        self._worked_ns = 0
        #: Rows since the last end, which the step that ends next takes with its phases: of pauses, and of data loaders.
        self.rows: list[tuple[RowKind, Row]] = []

    @property
    def begun(self) -> bool:
        """Whether a first mark was set, so that the present time belongs to a step."""
        return self._at != _BEFORE_ALL

    @property
    def present(self) -> int:
        """The phase of the present time; after a backward that of an update, which will show."""
        return UPDATE if self._at == AFTER_BACKWARD else min(self._at, OTHER)

    def hand_over(self, records: CapturedRecords) -> None:
        """Put :attr:`rows` into the records of the step that ends, which has them from now on."""
        for kind, row in self.rows:
            records.rows[kind].append(row)
        self.rows = []

    def restart(self) -> None:
        """This is a forked process: the time so far, and what belongs to it, is that of its parent."""
        self._at, self._spent_ns = _BEFORE_ALL, _NOTHING.copy()
        self.rows, self.returned = [], None

    def begin(self, phase: int) -> int:
        """One of the phases above begins now; returns the time in nanoseconds of the monotonic clock."""
        now_ns, at = self.now_ns(), self._at
        if DATA < at < AFTER_BACKWARD:  # as mostly, and without a further call: this runs several times in each step
            self._spent_ns[at] += now_ns - self._since_ns
            self._since_ns = now_ns
        else:
            self._count(now_ns, OTHER)
        self._at = phase
        return now_ns

    def _count(self, now_ns: int, after_backward: int) -> None:
        """The time since the last mark is over."""
        at, spent_ns = self._at, now_ns - self._since_ns
        self._since_ns = now_ns
        if at == AFTER_BACKWARD:
            at = after_backward
        elif at == DATA and self._computes():  # the wait has delayed nothing
            at = COMPUTE
        elif at == _AFTER_CALL:
            worked_ns = 0 if self._computes() else min(spent_ns, thread_time_ns() - self._worked_ns)
            self._spent_ns[OTHER] += worked_ns
            at, spent_ns = COMPUTE, spent_ns - worked_ns
        self._spent_ns[at] += spent_ns

    def _computes(self) -> bool:
        """Whether what the latest step has returned is still computed."""
        try:
            return self.returned is not None and not self.returned.is_ready()
        except Exception:  # the script has given its memory to another computation
            return False

    def copied(self, since_ns: int) -> None:
        """A copy to a device, which began at ``since_ns``, ends now: its time is no part of the present phase."""
        now_ns = self.now_ns()
        if self._at != _BEFORE_ALL:
            spent_ns = now_ns - max(since_ns, self._since_ns, self._copied_ns)
            self._spent_ns[COPY] += spent_ns
            self._since_ns += spent_ns
            self._copied_ns = now_ns

    def begin_update(self) -> None:
        """An optimizer is about to step. After a backward, the update has begun with the end of that."""
        if self._at != AFTER_BACKWARD:
            self.begin(UPDATE)

    def end(self) -> tuple[int, tuple[int, ...]]:
        """An update or the call of an evaluation ends now; returns the time, and the phases since the last end.

        Phases are in nanoseconds, in the order of :class:`~watchglass.records.StepPhase`.
        """
        now_ns, spent_ns = self.now_ns(), self._spent_ns
        self._count(now_ns, UPDATE)
        self._at = OTHER
        if self.returned is not None and self._computes():
            self._at, self._worked_ns = _AFTER_CALL, thread_time_ns()
        self._spent_ns = _NOTHING.copy()
        return now_ns, tuple(spent_ns[:AFTER_BACKWARD])

    def end_in(self, records: CapturedRecords) -> int:
        """The same, with phases and :attr:`rows` into the records of what ends; returns the time."""
        now_ns, phases = self.end()
        records.rows[PHASES].append(tuple([spent_ns / 1e9 for spent_ns in phases]))
        self.hand_over(records)
        return now_ns
