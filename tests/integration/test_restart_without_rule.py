"""An evaluator process that a rule has stuck for good begins again without it, as the same process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from waiting import PATIENCE_S
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Status
from watchglass.store import FrameKind, LocalStore, RunReader, decode_observation, lease_holder
from watchglass.testing import RunBuilder, build_run

pytestmark = pytest.mark.slow

RULES = '''
import ctypes
from watchglass.records import Severity
from watchglass.rules import Rule, state

class Stuck(Rule):
    """Waits in the C library for a lock that it holds itself."""
    def check(self, view):
        if view.mode_step == 2:
            mutex = ctypes.create_string_buffer(256)
            for _ in range(2):
                ctypes.CDLL(None).pthread_mutex_lock(mutex)
        return ()

class Steady(Rule):
    """Finds the same at every step."""
    def check(self, view):
        yield self.finding(view, severity=Severity.WARNING, subject="same", message="again")
'''


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a mutex of all zeros that can be locked once")
def test_the_process_goes_on_without_the_rule(run_path: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    specs = tuple(RuleSpec(f"{tmp_path}/rules.py:{name}") for name in ("Stuck", "Steady"))
    store = LocalStore(run_path)
    with RunBuilder(run_path) as builder:
        for _ in range(5):
            builder.step(scalars={"loss": 1.0})
        config = EvaluatorConfig(str(run_path), 0, specs, poll_s=0.02, rule_timeout_s=0.2).to_line()
        process = subprocess.Popen(
            [sys.executable, "-m", "watchglass.evaluate"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "HOOK_URL": "secret"},
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(config + "\n")
        process.stdin.flush()
        builder.leave()
        try:
            _, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, said
    check_that_it_went_on(said, store, specs)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a mutex of all zeros that can be locked once")
@pytest.mark.parametrize("many", [False, True])
def test_a_follower_goes_on_without_the_rule(tmp_path: Path, many: bool) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    specs = tuple(RuleSpec(f"{tmp_path}/rules.py:{name}") for name in ("Stuck", "Steady"))
    run = build_run(tmp_path / "runs" / "one", [{"scalars": {"loss": 1.0}} for _ in range(5)])
    followed = subprocess.run(
        [
            sys.executable, "-m", "watchglass", "follow", str(tmp_path / "runs") if many else run,
            "--rules", ",".join(spec.name for spec in specs), "--rule-timeout", "0.2", "--until-idle", "0.5",
        ],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert followed.returncode == 1, followed.stderr
    assert "is followed by process" not in followed.stderr, "it waits for itself"
    check_that_it_went_on(followed.stderr, LocalStore(run), specs)


def check_that_it_went_on(said: str, store: LocalStore, specs: Sequence[RuleSpec]) -> None:
    assert "Stuck is stuck on worker_0 in code that cannot be interrupted; the evaluator starts again" in said
    frames = RunReader(store).journal()
    seen = [decode_observation(frame.payload) for frame in frames if frame.kind == FrameKind.OBSERVATION]
    (left_out,) = [observation for observation in seen if observation.kind == "rule_timed_out"]
    assert (left_out.data["rule"], left_out.after) == ("Stuck", (2, 0, 2))
    stuck, steady = replay(store, specs, rule_timeout_s=1e6).statuses
    assert stuck.status is Status.ERROR
    assert "pthread_mutex_lock" in stuck.reason
    assert steady.status is Status.ISSUES_FOUND
    assert lease_holder(store) is None
