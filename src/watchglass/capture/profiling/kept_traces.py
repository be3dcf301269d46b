"""Traces of profiled windows that are kept in the run."""

from __future__ import annotations

import gzip
import logging
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from watchglass.capture.port import Port
from watchglass.config import absolute
from watchglass.records import facts
from watchglass.store import layout, open_store

_log = logging.getLogger("watchglass")
#: Compressed traces of a worker, all together, and one that is not compressed: house.
_MOST_KEPT_BYTES, _LARGEST_BYTES = 64 << 20, 256 << 20


class KeptTraces:
    """Writes traces into the run, up to a size. For the thread that reads windows. Raises nothing.

    Args:
        port: Names the run, and gets a fact about each trace that is not kept.
        source: The profiler, as the source of such facts.
    """

    def __init__(self, port: Port, source: str) -> None:
        self._port, self._source = port, source
        # A script may change its working directory.
        self._location = absolute(port.config.run)
        self._place: tuple[int, str] | None = None
        self._kept_bytes = 0
        port.on_start.append(self._begin)

    def _begin(self, attempt: int) -> None:
        self._place = attempt, layout.worker_name(self._port.rank() or 0)

    def keep(self, export: Callable[[Path], object], first_step: int, *, writes: bool) -> str:
        """Write a trace, if ``writes``; returns its path in the run, "" if it is not kept.

        Args:
            export: Writes the trace into a file, in Chrome's format.
            first_step: The first step of its window.
            writes: Whether files may be written.
        """
        try:
            if not writes:
                raise RuntimeError("the next window began before it was written")
            return self._write(export, first_step)
        except Exception as error:  # the window is recorded without it
            reason = f"{type(error).__name__}: {error}"
            _log.warning("watchglass: the trace of the window at step %d is not kept: %s", first_step, reason)
            self._port.add_fact(facts.TraceNotKept(first_step, reason), self._source)
            return ""

    def _write(self, export: Callable[[Path], object], first_step: int) -> str:
        if self._place is None:
            raise RuntimeError("the run is not open yet")
        with tempfile.TemporaryDirectory(prefix="watchglass-") as folder:
            file = Path(folder) / "trace.json"
            export(file)
            size = file.stat().st_size
            if size > _LARGEST_BYTES:
                raise ValueError(f"it has {size:,} bytes, more than {_LARGEST_BYTES:,}; profile fewer steps")
            data = gzip.compress(file.read_bytes(), 4, mtime=0)
        if self._kept_bytes + len(data) > _MOST_KEPT_BYTES:
            raise ValueError(f"all traces of a worker together have at most {_MOST_KEPT_BYTES:,} bytes")
        path = layout.trace(*self._place, first_step)
        with closing(open_store(self._location)) as store:
            store.write(path, data, replace=True)
        self._kept_bytes += len(data)
        return path
