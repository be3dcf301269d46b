"""Cuts what streams write into the windows of a rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.rules import Windows
from watchglass.tables import Window, Written

#: Attempt, stream and clock.
_Key = tuple[int, str, int]


class Cutting:
    """The windows of one rule. For one thread; it keeps the rows of the last window of each stream, and all later ones.

    A window begins at a multiple of its length by the clock of its stream. It is over once a watermark has passed its
    end. So windows depend on the stored data alone, and not on the pieces in which a reader gets it. A stretch without
    rows is no window.

    Args:
        windows: What the rule has declared.
        run_id: Identifier of the run.
    """

    def __init__(self, windows: Windows, run_id: str) -> None:
        self.windows, self._run_id = windows, run_id
        self._open: dict[_Key, dict[str, NDArray[Any]]] = {}
        self._recent: dict[_Key, Window] = {}
        #: Whether any row of the kinds has come.
        self.seen = False

    def recent(self, attempt: int) -> tuple[Window, ...]:
        """See :attr:`StepView.streams`."""
        return tuple(recent for key, recent in self._recent.items() if key[0] == attempt)

    def cut(self, written: Written) -> list[Window]:
        """The windows that a watermark ends, in their order; of a stream that is lost also the open window."""
        key = (written.attempt, written.stream, written.clock)
        rows = self._open.setdefault(key, {})
        for kind in self.windows.kinds:
            more = written.rows.get(kind)
            if more is not None and len(more):
                more = more[np.argsort(more["time_ns"], kind="stable")]
                rows[kind] = np.concatenate([rows[kind], more]) if kind in rows else more
                self.seen = True
        found, recent = [], rows
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
            recent = rows
            rows = {kind: rows[kind][place:] for kind, place in places.items() if place < len(rows[kind])}
        self._open[key] = rows
        if found:
            self._recent[key] = replace(found[-1], end_ns=written.until_ns, tables=recent)
        if written.lost:
            del self._open[key]
            self._recent.pop(key, None)
        return found
