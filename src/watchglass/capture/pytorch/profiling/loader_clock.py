"""The times of the batches of a data loader, noted where they are made: in its worker processes, or in this one.

A worker process writes the times of each batch into memory that it shares with this process, before it sends the batch.
So they are there when the batch arrives, and nothing is added to what the loader sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import get_ident
from typing import Any, NamedTuple

from watchglass.capture.wrappers_importlib_bootstrap import noting

#: Numbers of a batch in the shared memory: begin of the fetch (0 if unknown), of collate_fn, its end, and the number of
#: the batch among those of the worker, from 1.
_NUMBERS = 4


class BatchTimes(NamedTuple):
    """One batch that the script has taken, in nanoseconds."""

    worker: int  #: The worker process that made it; -1 for this process.
    fetch_ns: int  #: To get the samples; -1 if unknown.
    collate_ns: int  #: ``collate_fn``.
    queued_ns: int  #: From then until the script had it.
    transfer_ns: int  #: The part of it in which the script waited for it.


class BatchMaker:
    """Notes the times of batches in the process that makes them, one after the other.

    Args:
        memory: The shared memory, int64[workers x slots x 4], an object with ``numpy()``; None in this process.
        slots: Batches of a worker that it holds.
        worker_info: Returns what PyTorch tells a worker process about itself: ``id`` and ``dataset``.
        iterable: Whether the data set is iterated, and not indexed.
        now_ns: Monotonic clock, which a worker process can get by pickle.
    """

    def __init__(
        self, memory: Any, slots: int, worker_info: Callable[[], Any], iterable: bool, now_ns: Callable[[], int]
    ) -> None:
        self._memory, self._slots, self._worker_info, self._iterable = memory, slots, worker_info, iterable
        self._now_ns = now_ns
        self._numbers = None if memory is None else memoryview(memory.numpy())
        self._worker, self._thread, self._made = -1, get_ident(), 0
        self._begun = 0, 0
        #: When the first sample of the next batch was requested; 0 for not yet.
        self.fetch_ns = 0
        #: Begin of the fetch and of ``collate_fn``, and its end, of the requested batch; None before it is ready.
        self.last: tuple[int, int, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchMaker, (self._memory, self._slots, self._worker_info, self._iterable, self._now_ns)

    def enter_worker(self) -> None:
        """This is a worker process, whose loader is about to ask for the first samples."""
        info = self._worker_info()
        self._worker, self._thread = int(info.id), get_ident()
        # Classes that take no attributes, as list, leave the fetch unknown. Only this process has the changed class.
        with suppress(AttributeError, TypeError):
            self._observe(info.dataset)

    def _observe(self, data_set: Any) -> None:
        of = type(data_set)
        if not self._iterable:
            for name in ("__getitem__", "__getitems__"):
                if callable(getattr(of, name, None)):
                    setattr(of, name, noting(getattr(of, name), self.fetch_begins, self.fetch_fails))
            return
        iterate = of.__iter__

        def noted(each: Any) -> Any:
            items = iterate(each)
            if each is not data_set:
                return items
            self.fetch_ns = 0
            return _Items(items, self.fetch_begins)

        of.__iter__ = noted

    def fetch_begins(self) -> None:
        """A sample is requested; of a batch the first one counts."""
        if not self.fetch_ns and get_ident() == self._thread:
            self.fetch_ns = self._now_ns()

    def fetch_fails(self) -> None:
        """The data set has raised: there is no batch."""
        self.fetch_ns = 0

    def collate_begins(self) -> None:
        """``collate_fn`` is called."""
        self._begun = self.fetch_ns, self._now_ns()
        self.fetch_ns = 0

    def collate_ends(self) -> None:
        """It has returned: the batch is ready."""
        times = *self._begun, self._now_ns()
        self.fetch_ns = 0  # collate_fn may have read the data set, too
        if self._numbers is None:
            self.last = times
        elif self._worker >= 0:
            at = _NUMBERS * (self._worker * self._slots + self._made % self._slots)
            self._made += 1
            # The number comes last: with it the others are valid.
            for place, number in enumerate((*times, self._made)):
                self._numbers[at + place] = number


class _Items:
    """The iterator of a data set, with a note at each request."""

    def __init__(self, items: Iterator[Any], begins: Callable[[], None]) -> None:
        self._items, self._begins = items, begins

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Any:
        self._begins()
        return next(self._items)


class BatchReader:
    """Finds the times of the batches that arrive in this process.

    A loader hands out the batches of its workers in turn. A worker has written the times of a batch before it arrives,
    so one that has none at its turn has no batch either: its part of the data set is exhausted.

    Args:
        maker: Notes the times of the batches.
        memory: As of the maker.
        workers: Number of worker processes.
        slots: As of the maker.
        in_order: Whether batches come in turn; else in the order in which they are ready.
    """

    def __init__(self, maker: BatchMaker, memory: Any, workers: int, slots: int, *, in_order: bool) -> None:
        self.maker, self._in_order, self._slots = maker, in_order, slots
        self._numbers = None if memory is None else memoryview(memory.numpy())
        self._taken = [0] * workers
        self._turn = self._requested_ns = 0
        self._ended = self._settled = False
        #: Whether it is no longer known which worker made a batch.
        self.lost = False

    def restart(self) -> None:
        """The script begins another epoch with the same workers."""
        if self._settled:
            self.lost = False
        else:
            # The loader discards the rest of an epoch that the script has not finished, at a time that is not known.
            self.lost = self.lost or not self._ended or any(self._number(each) for each in range(len(self._taken)))
        self._turn, self._ended, self._settled = 0, False, False

    def settle(self) -> None:
        """The workers have made all batches of the epoch before, also those that the script has left, and no others."""
        if self._numbers is not None:
            places = range(_NUMBERS - 1, _NUMBERS * self._slots, _NUMBERS)
            begins = range(0, len(self._numbers), _NUMBERS * self._slots)
            self._taken = [max(self._numbers[begin + place] for place in places) for begin in begins]
            self._settled = True

    def request(self, now_ns: int) -> None:
        """The script asks for the next batch."""
        self._requested_ns = now_ns
        if self._numbers is None:
            self.maker.fetch_ns, self.maker.last = now_ns, None

    def end(self) -> None:
        """The loader has raised: there are no more batches in this epoch."""
        self._ended = True

    def take(self, now_ns: int) -> BatchTimes | None:
        """The times of the batch that has arrived; None if they are unknown."""
        if self._ended or self.lost:
            self.lost = True
            return None
        worker, times = self._next()
        if times is None:
            self.lost = True
            return None
        fetch_ns, collate_ns, ready_ns = times
        late_ns = now_ns - max(ready_ns, self._requested_ns)
        return BatchTimes(
            worker, max(0, collate_ns - fetch_ns) if fetch_ns else -1, max(0, ready_ns - collate_ns),
            max(0, now_ns - ready_ns), max(0, late_ns),
        )  # fmt: skip

    def _next(self) -> tuple[int, tuple[int, int, int] | None]:
        if self._numbers is None:
            return -1, self.maker.last
        count, worker = len(self._taken), self._turn
        if not self._in_order:
            found = [each for each in range(count) if self._number(each)]
            worker = min(found, key=lambda each: self._times(each)[2], default=-1)
        elif not self._number(worker):
            turns = ((self._turn + each) % count for each in range(1, count))
            worker = next((each for each in turns if self._number(each)), -1)
        if worker < 0:
            return -1, None
        times = self._times(worker)
        self._taken[worker] += 1
        self._turn = (worker + 1) % count
        return worker, times

    def _place(self, worker: int) -> int:
        return _NUMBERS * (worker * self._slots + self._taken[worker] % self._slots)

    def _number(self, worker: int) -> bool:
        """Whether the times of the worker's next batch are there."""
        assert self._numbers is not None
        return bool(self._numbers[self._place(worker) + _NUMBERS - 1] == self._taken[worker] + 1)

    def _times(self, worker: int) -> tuple[int, int, int]:
        assert self._numbers is not None
        at = self._place(worker)
        return self._numbers[at], self._numbers[at + 1], self._numbers[at + 2]
