"""The figures in README.md are those of docs/scoreboard.md."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_hit_rates_are_those_of_the_held_out_half() -> None:
    page = (REPOSITORY / "docs" / "scoreboard.md").read_text(encoding="utf-8")
    row = re.search(r"^\| watchglass, at `warning` \|(.*)\|$", page.partition("## The held-out half")[2], re.MULTILINE)
    assert row is not None
    found, alarms, first = (cell.split(" (")[0].strip() for cell in row[1].split("|")[:3])
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    claim = re.search(
        r"find (\d+ %) of the faulty ones, name the right cause first for (\d+ %), .* (\d+ %) of the h", readme
    )
    assert claim is not None
    assert claim.groups() == (found, first, alarms)
