"""The contracts of a recorder's writer and of what opens it."""

from __future__ import annotations

from typing import Any, Protocol

from watchglass.store import RawTensor, Rings


class FrameWriter(Protocol):
    """Takes frames: the store's segment writer, or a list in tests."""

    rings: Rings | None  #: Where the flight recorder writes, None for nowhere.
    flush_s: float  #: Seconds between flushes, unless the user sets them.
    urgent_s: float  #: Least seconds between two flushes, however urgent the second is.
    patience_s: float  #: Seconds for which a refused last flush is retried.
    closing_s: float  #: Seconds that this and :meth:`close` may take together.

    def write(self, frames: list[bytes]) -> None:
        """Write frames in order, all or none; raises StoreError when the store refuses."""

    def write_tensors(self, tensors: list[tuple[int, RawTensor]]) -> list[dict[str, Any]]:
        """Write raw tensors ``(global_step, tensor)``; returns their index rows."""

    def close(self) -> bool:
        """End writing; returns whether everything written survives this process."""


class Opening(Protocol):
    """Makes a writer, on the recorder's thread.

    Attributes:
        patience_s: Seconds for which the recorder retries after the run has ended.
    """

    @property
    def patience_s(self) -> float: ...  # noqa: D102

    def __call__(self) -> FrameWriter:
        """The writer. The recorder retries where it raises StoreError, since the store may become reachable."""

    def abandon(self) -> None:
        """It is not called again."""
