"""The memory that capture holds: how much at most, by device."""

from __future__ import annotations

from collections import defaultdict


class Memory:
    """Counts what capture holds on each device. For the training's thread."""

    def __init__(self) -> None:
        self._held: defaultdict[str, int] = defaultdict(int)
        self.peak: dict[str, int] = {}

    def hold(self, device: str, size: int) -> None:
        """So many bytes more are held; negative for fewer."""
        self._held[device] += size
        self.peak[device] = max(self.peak.get(device, 0), self._held[device])
