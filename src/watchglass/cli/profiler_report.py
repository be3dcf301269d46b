"""The profiler's report of a stored run: the rules on time and machine are evaluated for it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from watchglass import view
from watchglass.cli.terminal import working
from watchglass.config import EvaluatorConfig, joined
from watchglass.diagnose import rule_texts
from watchglass.rules import expand, parse_rules
from watchglass.store import layout, open_store

#: The set of rules whose verdict the report states.
_RULES = "system"


class WrittenReport(NamedTuple):
    """A written report: its place, a path or an address, and its size."""

    place: str
    bytes: int


def place_of(run: str, output: str | None) -> str:
    """Where :func:`write_profiler_report` writes: ``output``, or the report inside the run."""
    return output or joined(run, layout.PROFILER_REPORT)


def write_profiler_report(path: str, output: str | None, *, replace: bool = False) -> WrittenReport:
    """Write the report of a run, as JSON if ``output`` ends with ``.json``, else as HTML.

    Args:
        path: Location of the run.
        output: The file; it appears whole or not at all. None for the report inside the run, which is replaced.
        replace: Overwrite a file that is there.

    Raises:
        WatchglassError: The location is no run, the run is unreadable, or the file cannot be written.
    """
    from watchglass.cli.verdicts import replayed

    target = None if output is None else view.check_report_path(output, replace=replace, or_json=True)
    run, verdict = replayed(EvaluatorConfig(path, None, expand(parse_rules([_RULES]))))
    with working("drawing the figures"):
        made = view.profile_json if Path(output or "").suffix.lower() == ".json" else view.render_profile_report
        text = made(run, verdict, rule_texts(verdict))
    data = text.encode()
    if target is not None:
        view.write_whole(target, data, option="-o")
    else:
        with closing(open_store(path)) as store:
            store.write(layout.PROFILER_REPORT, data, replace=True)
    return WrittenReport(place_of(path, output), len(data))
