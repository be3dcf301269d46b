"""Runs the tests of a file in a process of its own, which has the garbage, caches and threads of no other test.

A file that forks, counts calls or lists objects says so: ``pytestmark = pytest.mark.own_process``. Its tests run in one
fresh process, whose reports this process passes on as if it had run them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

#: Where a process that was started for one file writes its reports, a line of JSON each.
_REPORTS = "WATCHGLASS_TEST_REPORTS"
_key = pytest.StashKey[dict[Path, dict[str, list[Any]]]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Pass on the reports of a test that ran in the process of its file, which its first test starts."""
    if _REPORTS in os.environ or item.get_closest_marker("own_process") is None:
        return None
    files = item.session.stash.setdefault(_key, {})
    if item.path not in files:
        # Each test has its time limit in the process of the file: here that of the first one would be for all.
        item.ihook.pytest_timeout_cancel_timer(item=item)
        files[item.path] = _run(item)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in files[item.path].get(item.nodeid) or [_missing(item)]:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    # Nothing was set up for it: what the test before has left for its folder would be in the way of the next one.
    item.session._setupstate.teardown_exact(nextitem)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process of a file: write the report down."""
    if _REPORTS in os.environ and _config:
        data = _config[0].hook.pytest_report_to_serializable(config=_config[0], report=report)
        with open(os.environ[_REPORTS], "a", encoding="utf-8") as file:
            file.write(json.dumps(data) + "\n")


_config: list[pytest.Config] = []


def pytest_configure(config: pytest.Config) -> None:
    """Keep the configuration for the hooks that do not get it."""
    config.addinivalue_line("markers", "own_process: its file runs in a process of its own")
    _config[:] = [config]


def _run(item: pytest.Item) -> dict[str, list[Any]]:
    """The reports of all tests of a file that are to run, by test."""
    config = item.config
    here = [each for each in item.session.items if each.path == item.path]
    reports: dict[str, list[Any]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "reports"
        options = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder}/tmp", f"--rootdir={config.rootpath}"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *(each.nodeid for each in here)],
            cwd=config.rootpath, env=_environment(str(lines)), capture_output=True, text=True, check=False,
        )  # fmt: skip
        for line in lines.read_text(encoding="utf-8").splitlines() if lines.exists() else ():
            report = config.hook.pytest_report_from_serializable(config=config, data=json.loads(line))
            if isinstance(report.longrepr, list):  # the file, line and reason of a skipped test
                report.longrepr = tuple(report.longrepr)
            reports[report.nodeid].append(report)
    if done.returncode not in (0, 1) or not reports:
        # It was killed, or could not begin: its last test has no report of its end.
        output = f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        for each in here:
            if not any(report.when == "teardown" for report in reports[each.nodeid]):
                reports[each.nodeid] = [_missing(each, output)]
    return reports


def _environment(reports: str) -> dict[str, str]:
    """That of the process of a file: it is no worker of pytest-xdist."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**kept, _REPORTS: reports}


def _missing(item: pytest.Item, output: str = "") -> pytest.TestReport:
    text = f"the process of {item.path.name} did not run this test to its end: {output[-4000:]}"
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
