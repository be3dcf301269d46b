"""Runs each failed test once more, alone, in a fresh process, where ``WATCHGLASS_TEST_RETRY`` is 1, as in CI.

A test that passes there is listed as FLAKY with its first failure, and does not fail the run: it met what another test
left behind, or a busy machine. That is a fault to be mended, but not one of the change that is tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

#: Far more are no chance.
_MOST = 20
_ALONE_S = 600


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Run the failed tests again, and pass the session if all of them pass now."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("WATCHGLASS_TEST_RETRY") != "1" or "PYTEST_XDIST_WORKER" in os.environ or reporter is None:
        return
    failures = {report.nodeid: report for kind in ("error", "failed") for report in reporter.stats.get(kind, ())}
    if exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(failures) <= _MOST:
        return
    flaky = [nodeid for nodeid in failures if _passes_alone(session, nodeid)]
    for kind in ("error", "failed"):
        reporter.stats[kind] = [report for report in reporter.stats.get(kind, ()) if report.nodeid not in flaky]
    if flaky:
        reporter.stats["flaky"] = [failures[nodeid] for nodeid in flaky]
    if len(flaky) == len(failures):
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the tests that failed once and passed alone, each with its first failure."""
    for report in terminalreporter.stats.get("flaky", ()):
        terminalreporter.section(f"FLAKY {report.nodeid}", sep="_")
        terminalreporter.line("failed once, and passed alone in a fresh process; first failure:")
        terminalreporter.line(report.longreprtext)


def _passes_alone(session: pytest.Session, nodeid: str) -> bool:
    environment = {name: value for name, value in os.environ.items() if name != "WATCHGLASS_TEST_RETRY"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", nodeid]
    try:
        done = subprocess.run(
            command, cwd=session.config.rootpath, env=environment, capture_output=True, timeout=_ALONE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
