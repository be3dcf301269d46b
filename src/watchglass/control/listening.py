"""The worker's half: looks for requests, acknowledges them with the step that it has seen, reads what is committed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from watchglass.control.messages import (
    Acknowledgement,
    Change,
    Commit,
    ProfileWindow,
    Stop,
    decode_commit,
    encode,
)
from watchglass.errors import DamagedDataError, MissingFileError
from watchglass.store import PollingIntervals, Store, layout, read_small

_log = logging.getLogger("watchglass")


class Mailbox(Protocol):
    """A source of committed changes."""

    def poll(self, train_step: int) -> list[Commit]:
        """Changes committed since the last call, some perhaps only at the next call.

        Args:
            train_step: The last TRAIN step that this worker has seen.
        """

    def close(self) -> None:
        """Stop looking."""


class StoreMailbox:
    """Looks at the store itself, which takes as long as that takes; raises what the store raises.

    A requested change is acknowledged again at every look until it is committed.

    Args:
        store: The run's store.
        attempt: The attempt of this worker.
        worker: Its name.
        kinds: The kinds of changes that this worker can act on, the most urgent one first.
    """

    def __init__(
        self, store: Store, attempt: int, worker: str, kinds: Sequence[type[Change]] = (Stop, ProfileWindow)
    ) -> None:
        self._store, self._attempt, self._worker = store, attempt, worker
        # The number of the change of each kind that comes next.
        self._next: dict[type[Change], int] = dict.fromkeys(kinds, 0)
        self._open: set[type[Change]] = set()

    @property
    def requested(self) -> bool:
        """Whether a change is requested and not committed yet."""
        return bool(self._open)

    def poll(self, train_step: int) -> list[Commit]:  # noqa: D102
        for kind in self._next:
            commit = self._look(kind, train_step)
            if commit is not None:
                return [commit]  # now: the look for the next kind may fail
        return []

    def close(self) -> None:  # noqa: D102
        pass

    def _look(self, kind: type[Change], train_step: int) -> Commit | None:
        place = (kind.kind, self._attempt, self._next[kind])
        # Runs without a request repeat these lookups all the time: a size costs less than a read that fails.
        if not kind.agreed:
            return None if self._store.size(layout.control_commit(*place)) is None else self._committed(kind, place)
        if kind not in self._open:
            if self._store.size(layout.control_request(*place)) is None:
                return None
            self._open.add(kind)
        seen = encode(Acknowledgement(train_step), time.time_ns())
        self._store.write(layout.control_seen(*place, self._worker), seen, replace=True)
        try:
            commit = decode_commit(kind, read_small(self._store, layout.control_commit(*place)))
        except MissingFileError:
            return None
        self._open.discard(kind)
        self._next[kind] += 1
        return commit

    def _committed(self, kind: type[Change], place: tuple[str, int, int]) -> Commit | None:
        """The change that somebody has committed without asking; None for one that cannot be read, which is passed."""
        commit = None
        try:
            commit = decode_commit(kind, read_small(self._store, layout.control_commit(*place)))
        except (DamagedDataError, MissingFileError) as error:
            _log.warning("watchglass: a request is ignored: %s", error)
        self._next[kind] += 1
        return commit


class BackgroundMailbox:
    """Looks on a separate thread, for stores that may be slow or unreachable: :meth:`poll` never waits.

    Args:
        mailbox: Looks at the store.
        intervals: How often: ``control_s``, and ``answer_s`` while a change is requested.
    """

    def __init__(self, mailbox: StoreMailbox, intervals: PollingIntervals) -> None:
        self._mailbox = mailbox
        self._intervals = intervals
        self._train_step = -1
        self._committed: list[Commit] = []
        self._closed = threading.Event()
        self._blind = False
        with suppress(RuntimeError):  # the interpreter ends, and begins no threads: there is nothing left to change
            threading.Thread(target=self._look, name="watchglass-control", daemon=True).start()

    def poll(self, train_step: int) -> list[Commit]:  # noqa: D102
        self._train_step = train_step
        committed = self._committed[:]
        del self._committed[: len(committed)]
        return committed

    def close(self) -> None:  # noqa: D102
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.is_set():
            try:
                self._committed += self._mailbox.poll(self._train_step)
                self._blind = False
            except Exception as error:  # a store may come back, and a change that is still requested is seen then
                if not self._blind and not self._closed.is_set():
                    self._blind = True
                    _log.info("watchglass: cannot check for stop requests: %s", error)
            self._closed.wait(self._intervals.answer_s if self._mailbox.requested else self._intervals.control_s)


def open_mailbox(
    store: Store, attempt: int, name: str, workers: int = 1, kinds: Sequence[type[Change]] = (Stop, ProfileWindow)
) -> Mailbox:
    """The mailbox of one of several workers, or of a stream, by name: one whose looks never wait for a slow store."""
    mailbox = StoreMailbox(store, attempt, name, kinds)
    return BackgroundMailbox(mailbox, store.policy.intervals(workers)) if store.policy.buffers_writes else mailbox


class Listener:
    """Passes on each committed change once. For the recorder's thread; retries where the store refuses.

    Args:
        on_commit: Called with each commit. A stop is the last one.
    """

    def __init__(self, on_commit: Callable[[Commit], None]) -> None:
        self._on_commit = on_commit
        self._mailbox: Mailbox | None = None
        self._blind = False

    def listen(self, mailbox: Mailbox) -> None:
        """Look into this mailbox from now on."""
        self._mailbox = mailbox

    def look(self, train_step: int) -> None:
        """Look once; ``train_step`` is the last one seen."""
        if self._mailbox is None:
            return
        try:
            committed = self._mailbox.poll(train_step)
        except Exception as error:
            if not self._blind:
                self._blind = True
                _log.warning("watchglass: cannot check for stop requests: %s", error)
            return
        self._blind = False
        for commit in committed:
            if isinstance(commit.change, Stop):
                self.close()
            self._on_commit(commit)

    def close(self) -> None:
        """Stop looking."""
        if self._mailbox is not None:
            self._mailbox.close()
            self._mailbox = None
