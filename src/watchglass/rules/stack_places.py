"""Where the script stands, from the fact ``stacks``."""

from __future__ import annotations

import os
from collections.abc import Mapping

from watchglass.records import facts

#: File, line and function of each.
Frames = tuple[tuple[str, int, str], ...]

#: Parts of the paths of files that belong to Python or to installed packages, not to the script; and of the functions
#: of watchglass around those of PyTorch, which an editable install leaves where its source is.
_LIBRARIES = (
    "site-packages", "dist-packages", f"{os.sep}lib{os.sep}python", "<frozen",
    f"{os.sep}watchglass{os.sep}capture{os.sep}",
)  # fmt: skip


def frames_of(stacks: facts.Stacks) -> Frames:
    """Frames of the thread that trains, the innermost first; () where there are none."""
    return next((thread.frames for thread in stacks.threads if thread.trains), ())[:32]


def place_of(frames: Frames) -> str:
    """Where the script stands, and the innermost function there."""
    inner = frames[0]
    script = next((each for each in frames if not any(part in each[0] for part in _LIBRARIES)), inner)
    line = f"{os.path.basename(script[0])}:{script[1]} in {script[2]}"
    return line if script is inner else f"{line}, in {inner[2]} of {os.path.basename(inner[0])}"


def standing(places: Mapping[str, str]) -> str:
    """Which workers stand where; the place with the fewest first, for that is where ranks differ."""
    by_place: dict[str, list[str]] = {}
    for worker, place in places.items():
        by_place.setdefault(place, []).append(worker)
    rows = sorted(by_place.items(), key=lambda each: (len(each[1]), each[0]))[:4]
    if len(rows) == 1:
        return f"{'it stands' if len(places) == 1 else 'all stand'} at {rows[0][0]}"
    return "; ".join(f"{', '.join(workers[:4])} at {place}" for place, workers in rows)
