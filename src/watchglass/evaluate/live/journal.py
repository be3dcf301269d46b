"""The evaluator's side of the journal: its lease, records written once, and kept while the store is unreachable."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from watchglass.config import Clock
from watchglass.errors import DamagedDataError, RunExistsError, StoreError
from watchglass.records import Finding, RuleStatus
from watchglass.store import (
    Claim,
    JournalRecord,
    JournalWriter,
    LeaseWatch,
    Renewal,
    RunReader,
    Store,
    decode_record,
    layout,
    lease_holder,
    this_process,
)


class BufferedJournal:
    """Keeps the journal of a run. For one thread.

    Where segments grow, every record is written at once. On an object store records wait for the next
    :meth:`flush`, one object for all of them. What could not be written waits as well; of a finding or status that
    changes meanwhile the newest state does.
    """

    def __init__(
        self, store: Store, report: Callable[[str], None], clock: Clock = time, most_waiting: int = 65_536
    ) -> None:
        """A journal that is not opened yet.

        Args:
            store: The store of a run.
            report: Takes a sentence for the user.
            clock: The time.
            most_waiting: Records that wait for an unreachable store; further ones are dropped and reported.
        """
        self._store, self._report, self._clock, self._most_waiting = store, report, clock, most_waiting
        self._writer: JournalWriter | None = None
        self._renewal = Renewal(store, clock=clock)
        self._waiting: dict[tuple[str, str], JournalRecord] = {}
        self._written: dict[tuple[str, str], JournalRecord] = {}
        self._refused = False
        #: Records that were dropped because too many waited.
        self.dropped = 0

    def open(
        self, pause: Callable[[float], bool], *, patience_s: float, poll_s: float, gone: Claim | None = None
    ) -> None:
        """Take the lease, and learn what an earlier evaluator wrote.

        A holder on this machine is waited for. One on another cannot be seen: if it renews the lease it lives, if it
        has not for :attr:`Timing.lease_expiry_s <watchglass.config.Timing>` it is gone, and its lease is taken over.

        Args:
            pause: Waits so many seconds, or less; returns False to end the wait.
            patience_s: Seconds to wait for a holder that lives.
            poll_s: Seconds between looks.
            gone: A holder that is known to be dead, although its process is on another machine.

        Raises:
            RunExistsError: Another evaluator still writes the journal.
            StoreError: The store refused.
        """
        give_up_s = self._clock.monotonic() + patience_s
        watch = LeaseWatch(self._store, self._clock)
        while self._writer is None:
            try:
                self._writer = JournalWriter(self._store, gone)
            except RunExistsError:
                renewed = watch.renewed()
                watch.holds()
                gone = watch.gone
                late = self._clock.monotonic() >= give_up_s and (renewed or not watch.elsewhere)
                if gone is None and (late or not pause(poll_s)):
                    raise
        self._renewal.tick()
        for frame in RunReader(self._store).journal():
            with suppress(DamagedDataError):
                record = decode_record(frame)
                self._written[_key(record)] = record

    @property
    def records(self) -> list[JournalRecord]:
        """The written records, findings and statuses in their newest state, in the order in which they first came."""
        return list(self._written.values())

    @property
    def known(self) -> list[JournalRecord]:
        """The written records and those that wait."""
        return list({**self._written, **self._waiting}.values())

    def write(self, records: Sequence[JournalRecord]) -> None:
        """Write records, except those that are already there."""
        for record in records:
            key = _key(record)
            if not _says_more(record, self._written.get(key)) and key not in self._waiting:
                continue
            if len(self._waiting) >= self._most_waiting and key not in self._waiting:
                self.dropped += 1
                continue
            self._waiting[key] = record
        if self._store.policy.segments_grow:
            self.flush()

    def flush(self) -> bool:
        """Write the records that wait; returns whether all were written.

        Raises:
            RunExistsError: Another evaluator has taken the journal over.
        """
        if not self._waiting or self._writer is None:
            return not self._waiting
        try:
            self._writer.write(list(self._waiting.values()))
        except StoreError as error:
            if not self._refused:
                self._report(f"{error}; findings are buffered until the store accepts them")
            self._refused = True
            return False
        except RunExistsError:
            self._check_lease()
            return False  # it is ours, and an answer to an earlier write was lost: the next one counts on
        if self._refused:
            dropped = f", {self.dropped} were too many and are omitted" if self.dropped else ""
            self._report(f"findings are being written again{dropped}")
        self._refused = False
        self._written.update(self._waiting)
        self._waiting.clear()
        return True

    def conclude(self, attempt: int, ended: str) -> None:
        """Write down that everything was judged, so that no evaluator has to open the run again to know.

        Args:
            attempt: The newest attempt there was.
            ended: How the run ended, in words.

        Raises:
            StoreError: The store refused.
        """
        if self._writer is not None:
            data = {"attempt": attempt, "ended": ended}
            self._store.write(layout.JUDGED, json.dumps(data).encode(), replace=True)

    def renew(self) -> None:
        """Show that we live, where it is time to.

        Raises:
            RunExistsError: Another evaluator has taken the journal over.
            StoreError: The store refused.
        """
        if self._writer is not None and self._renewal.tick():
            self._check_lease()

    def close(self, *, give_back: bool = True) -> None:
        """Release the lease, unless another evaluator has taken it. A second call does nothing.

        Args:
            give_back: False where the store is unreachable: the lease ends with this process, or expires.
        """
        writer, self._writer = self._writer, None
        if writer is None or not give_back:
            return
        with suppress(StoreError, DamagedDataError):
            if is_ours(lease_holder(self._store)):
                writer.close()

    def _check_lease(self) -> None:
        holder = lease_holder(self._store)
        if not is_ours(holder):
            self._writer = None
            by = f" by process {holder.pid} on {holder.host}" if holder is not None else ""
            raise RunExistsError(
                f"the journal of {self._store.location} was taken over{by} while this evaluator could not reach the "
                "store; that process evaluates the run now"
            )


def is_ours(holder: Claim | None) -> bool:
    """Whether the holder of a lease is this process."""
    ours = this_process()
    return holder is not None and (holder.host, holder.pid, holder.process_start) == (
        ours.host, ours.pid, ours.process_start,
    )  # fmt: skip


def _key(record: JournalRecord) -> tuple[str, str]:
    """Equal for records that replace each other: findings of one id, statuses of one rule, equal observations."""
    if isinstance(record, Finding):
        return "finding", record.id
    if isinstance(record, RuleStatus):
        return "status", record.rule
    return "observation", json.dumps([record.kind, record.attempt, record.data], sort_keys=True, default=str)


def _says_more(record: JournalRecord, written: JournalRecord | None) -> bool:
    """Whether a record is worth writing; an evaluator that starts again finds what was written before."""
    if written is None:
        return True
    if isinstance(record, Finding) and isinstance(written, Finding):
        return record.count > written.count
    return isinstance(record, RuleStatus) and record != written
