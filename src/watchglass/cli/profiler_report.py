"""The profiler's report of a stored run: the rules on time and machine are evaluated for it."""

from __future__ import annotations

from pathlib import Path

from watchglass import view
from watchglass.cli.terminal import working
from watchglass.config import EvaluatorConfig
from watchglass.rules import RULE_SETS, documentation, expand, find_rule, parse_rules

#: The set of rules whose verdict the report states.
_RULES = "system"


def write_profiler_report(path: str, output: str, *, replace: bool = False) -> int:
    """Write the report of a run, as JSON if ``output`` ends with ``.json``, else as HTML; returns its size in bytes.

    Args:
        path: Location of the run.
        output: The file; it appears whole or not at all.
        replace: Overwrite a file that is there.

    Raises:
        WatchglassError: The location is no run, the run is unreadable, or the file cannot be written.
    """
    from watchglass.cli.verdicts import replayed

    target = view.check_report_path(output, replace=replace)
    run, verdict = replayed(EvaluatorConfig(path, None, expand(parse_rules([_RULES]))))
    with working("drawing the figures"):
        document = view.profile_document(run, verdict, _texts())
        as_json = Path(output).suffix.lower() == ".json"
        text = view.profile_json(document) if as_json else view.render_profile_report(run, verdict, document)
        return view.write_whole(target, text.encode(), option="-o")


def _texts() -> dict[str, view.ProfilerRule]:
    found = map(documentation, map(find_rule, RULE_SETS[_RULES].rules))
    return {
        each.name: view.ProfilerRule(each.summary, {info.name: info.default for info in each.parameters})
        for each in found
    }
