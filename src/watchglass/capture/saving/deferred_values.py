"""Numbers that the recorder's thread computes, so that the training thread does not wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class DeferredNumbers:
    """Numbers that the recorder's thread computes from others once they have come from their device.

    Args:
        resolve: Waits for them and computes.
        nbytes: Bytes on the host until then.
    """

    resolve: Callable[[], Any]
    nbytes: int = 0
