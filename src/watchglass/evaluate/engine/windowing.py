"""Cuts what streams write into the windows of a rule."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.rules import Windows
from watchglass.run import Window, Written

#: Attempt, stream and clock.
_Key = tuple[int, str, int]


class Cutting:
    """The windows of one rule. For one thread; it keeps of each stream the rows of the open window and the last window.

    A window begins at a multiple of its length by the clock of its stream, and is there once a watermark has passed its
    end. So windows follow from what is stored, whatever the pieces in which it was read. Stretches without rows are no
    windows.

    Args:
        windows: What the rule has declared.
        run_id: Identifier of the run.
    """

    def __init__(self, windows: Windows, run_id: str) -> None:
        self.windows, self._run_id = windows, run_id
        self._open: dict[_Key, dict[str, NDArray[Any]]] = {}
        self._last: dict[_Key, Window] = {}
        #: Whether any row of the kinds has come.
        self.seen = False

    def newest(self, attempt: int) -> tuple[Window, ...]:
        """The last window of each stream that goes on."""
        return tuple(window for key, window in self._last.items() if key[0] == attempt)

    def cut(self, written: Written) -> list[Window]:
        """The windows that are over by a watermark, in their order; of a stream that is lost also the open one."""
        key = (written.attempt, written.stream, written.clock)
        rows = self._open.setdefault(key, {})
        for kind in self.windows.kinds:
            more = written.rows.get(kind)
            if more is not None and len(more):
                more = more[np.argsort(more["time_ns"], kind="stable")]
                rows[kind] = np.concatenate([rows[kind], more]) if kind in rows else more
                self.seen = True
        found = []
        length_ns = self.windows.length_ns
        while rows:
            start_ns = min(int(table["time_ns"][0]) for table in rows.values()) // length_ns * length_ns
            end_ns = start_ns + length_ns
            early = end_ns > written.until_ns
            if early and not written.lost:
                break
            places = {kind: int(np.searchsorted(table["time_ns"], np.uint64(end_ns))) for kind, table in rows.items()}
            found.append(
                Window(
                    run_id=self._run_id, attempt=key[0], stream=key[1], clock=key[2], start_ns=start_ns,
                    end_ns=written.until_ns if early else end_ns, lost=early,
                    tables={kind: rows[kind][:place] for kind, place in places.items() if place},
                )
            )  # fmt: skip
            rows = {kind: rows[kind][place:] for kind, place in places.items() if place < len(rows[kind])}
        self._open[key] = rows
        if found:
            self._last[key] = found[-1]
        if written.lost:
            del self._open[key]
            self._last.pop(key, None)
        return found
