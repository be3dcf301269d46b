"""How long the batches of data loaders take: to fetch samples, to collate them, and until the script has them."""

from __future__ import annotations

import math
import weakref
from contextlib import suppress
from threading import get_ident
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, get_worker_info

from watchglass.capture.guard import harmless
from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.profiling.loader_clock import BatchMaker, BatchReader
from watchglass.capture.step_phases import StepPhases
from watchglass.capture.wrappers_importlib_bootstrap import Sent
from watchglass.records import LOADER_WORKERS

#: Loaders with a number; all further ones share the next one (a script may make one in each epoch).
_MOST_LOADERS = 8
#: Batches whose times are summed up in one row, and the longest time. A row makes a step of the fast path a whole one.
_BATCHES, _LONGEST_NS = 16, 500_000_000


class LoaderTimes:
    """Puts clocks around ``collate_fn`` and ``worker_init_fn`` while a loader makes its iterator, and sums up times.

    The iterator keeps the functions that it finds, the loader gets back its own. For the training thread.

    Args:
        port: Its clock counts, and nothing is timed once it is off.
        phases: Gets the sums.
    """

    def __init__(self, port: Port, phases: StepPhases) -> None:
        self._port, self._phases, self._thread = port, phases, get_ident()
        self._samplers: weakref.WeakSet[type] = weakref.WeakSet()
        self._numbers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._count = 0
        # By the id of the iterator, with a reference to it; a lookup in a dictionary of weak keys costs a microsecond.
        self._readers: dict[int, tuple[weakref.ref[Any], int, BatchReader]] = {}
        # The loader that makes an iterator now, its own functions, and the reader of the iterator's batches.
        self._placed: tuple[Any, dict[str, Any], BatchReader] | None = None
        self._sums: dict[tuple[int, int], list[int]] = {}
        self._batches = self._since_ns = 0

    def starts(self, loader: Any) -> None:
        """A loader is about to make an iterator, or to start a kept one again."""
        self.take_back()
        # Of a class of the user that is different, or without shared memory, no times are recorded.
        with suppress(AttributeError, TypeError, ValueError, RuntimeError, OSError):
            reader = self._reader(loader)
            own = {name: _own(getattr(loader, name)) for name in ("collate_fn", "worker_init_fn")}
            self._placed = loader, own, reader
            maker = reader.maker
            begins, ends = maker.collate_begins, maker.collate_ends
            if not loader.num_workers:  # in a worker process there is no hook that could be off
                begins, ends = self._port.guard.shielded(begins), self._port.guard.shielded(ends)
            loader.collate_fn = Sent(own["collate_fn"], begins, ends)
            if loader.num_workers:
                loader.worker_init_fn = Sent(own["worker_init_fn"], _nothing, maker.enter_worker)
            self._observe_order(loader)

    def _observe_order(self, loader: Any) -> None:
        """Observe when a loader that keeps its workers asks for the first batch of an epoch."""
        made = None if _sampler_of(loader) is None else type(_sampler_of(loader))
        if made is not None and made not in self._samplers and made.__module__ != "builtins":
            self._samplers.add(made)
            self._port.detach_with(calls.new_order(made).listen(self._port.guard, before=self._ordered))

    def _ordered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A sampler begins a new order.

        A ``BatchSampler`` asks for it with the first batch. A loader that keeps its workers requests that batch once
        they have answered that they are done with the epoch before, and sends it to a worker after that.
        """
        placed = self._placed if get_ident() == self._thread else None
        if placed is None or _sampler_of(placed[0]) is not args[0]:
            return
        number = self._number(placed[0])
        for _, loader, reader in self._readers.values():
            if loader == number <= _MOST_LOADERS:
                reader.settle()

    def started(self, iterator: Any) -> None:
        """The loader has made this iterator; None if it raised."""
        placed, self._placed = self._placed, None
        if placed is None:
            return
        loader, own, reader = placed
        _give_back(loader, own)
        if iterator is None:
            return
        key, readers = id(iterator), self._readers
        if key in readers:
            readers[key][2].restart()
        else:
            reference = weakref.ref(iterator, harmless(lambda gone: readers.pop(key, None)))
            readers[key] = reference, self._number(loader), reader

    def take_back(self) -> None:
        """Give a loader its own functions where a fault has prevented that."""
        placed, self._placed = self._placed, None
        if placed is not None:
            _give_back(placed[0], placed[1])

    def requested(self, iterator: Any, now_ns: int) -> None:
        """The script asks for the next batch."""
        known = self._readers.get(id(iterator))
        if known is not None:
            known[2].request(now_ns)

    def arrived(self, iterator: Any, now_ns: int, raised: bool) -> None:
        """It has the batch, or the loader has raised, as at the end of an epoch."""
        known = self._readers.get(id(iterator))
        if known is None:
            return
        _, loader, reader = known
        if raised:
            reader.end()
            self._flush(now_ns)
            return
        times = reader.take(now_ns)
        if times is None:
            return
        worker, fetch_ns, collate_ns, queued_ns, transfer_ns = times
        sums = self._sums.get((loader, worker))
        if sums is None:
            self._sums[loader, worker] = [1, fetch_ns, collate_ns, queued_ns, transfer_ns]
        else:
            sums[0] += 1
            sums[1] = sums[1] + fetch_ns if fetch_ns >= 0 and sums[1] >= 0 else -1
            sums[2] += collate_ns
            sums[3] += queued_ns
            sums[4] += transfer_ns
        self._batches += 1
        if self._batches >= _BATCHES or now_ns - self._since_ns >= _LONGEST_NS:
            self._flush(now_ns)

    def _flush(self, now_ns: int) -> None:
        for maker, (batches, fetch_ns, *rest) in self._sums.items():
            fetch_s = fetch_ns / 1e9 if fetch_ns >= 0 else math.nan
            row = (*maker, batches, fetch_s, *(spent_ns / 1e9 for spent_ns in rest))
            self._phases.rows.append((LOADER_WORKERS, row))
        self._sums, self._batches, self._since_ns = {}, 0, now_ns

    def _reader(self, loader: Any) -> BatchReader:
        workers = int(loader.num_workers)
        # So many batches wait at most for the script, if all other workers are exhausted.
        slots = (loader.prefetch_factor or 2) * workers + 2
        memory = torch.zeros(workers * slots * 4, dtype=torch.int64, device="cpu").share_memory_() if workers else None
        iterable = isinstance(loader.dataset, IterableDataset)
        maker = BatchMaker(memory, slots, get_worker_info, iterable, self._port.phase_clock)
        return BatchReader(maker, memory, workers, slots, in_order=bool(getattr(loader, "in_order", True)))

    def _number(self, loader: Any) -> int:
        for number, known in self._numbers.items():
            if known is loader:
                return number
        self._count = min(self._count + 1, _MOST_LOADERS + 1)
        self._numbers[self._count] = loader
        return self._count


def _sampler_of(loader: Any) -> Any:
    """The sampler whose order shows when kept workers begin an epoch; None where none does."""
    if not loader.num_workers or not loader.persistent_workers or type(loader.batch_sampler) is not BatchSampler:
        return None
    return loader.batch_sampler.sampler


def _own(function: Any) -> Any:
    """The function of the script, also where another thread has put a clock around it."""
    return function.original if isinstance(function, Sent) else function


def _give_back(loader: Any, own: dict[str, Any]) -> None:
    for name, function in own.items():
        if isinstance(getattr(loader, name), Sent):
            setattr(loader, name, function)


def _nothing() -> None:
    """Before the script's ``worker_init_fn`` there is nothing to do."""
