"""A run as a card: its verdict, what to try first, and the course of its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from watchglass.errors import UnknownNameError
from watchglass.records import Verdict
from watchglass.view.curves import colour_of
from watchglass.view.pictures.colours import COLOURS
from watchglass.view.pictures.svg import sparkline
from watchglass.view.text import escaped, number
from watchglass.view.verdict import tone
from watchglass.view.verdict_sentences import headline

if TYPE_CHECKING:
    from watchglass.run import Run

#: Numbers of a course.
_MOST = 120
#: Texts have the colours of the notebook, light or dark.
_STYLE = f"""
.watchglass-card{{border-left:4px solid {COLOURS["train"]};padding:2px 10px;margin-bottom:6px}}
.watchglass-card.error{{border-color:{COLOURS["error"]}}}
.watchglass-card.warning{{border-color:{COLOURS["warning"]}}}
.watchglass-card p{{margin:2px 0}}
.watchglass-card path{{fill:none;stroke-width:1.5;vector-effect:non-scaling-stroke}}
.watchglass-card path.missing{{stroke:{COLOURS["error"]};stroke-width:4;stroke-linecap:round}}
"""


def run_card(run: Run, verdict: Verdict) -> str:
    """The card as HTML.

    Args:
        run: The run.
        verdict: The verdict by what its evaluator has written.
    """
    parts = [f"<p><b>{escaped(headline(verdict))}</b></p>"]
    if verdict.diagnoses:
        worst = verdict.diagnoses[0]
        parts.append(f"<p>{escaped(worst.headline)}</p>")
        parts += [f"<p>Try: {escaped(advice)}</p>" for advice in worst.what_to_try[:1]]
    try:
        losses = run.scalars("loss")[1]
    except UnknownNameError:
        losses = np.empty(0)
    if len(losses):
        places = np.unique(np.linspace(0, len(losses) - 1, _MOST).round().astype(int))
        course = sparkline(losses[places].tolist(), "course of the training loss", colour_of(run.manifest.run_id))
        parts.append(f"<p>training loss {course} {number(float(losses[-1]))}</p>")
    return f"<style>{_STYLE}</style><div class='watchglass-card {tone(verdict)}'>{''.join(parts)}</div>"
