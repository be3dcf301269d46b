"""Each rule with a test of a real run fires under ``watchglass run``, and does not on the healthy twin."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import real_runs
import watchglass
from preloaded import Preloaded
from real_runs import RealRuns, Suite, suites

TESTS = Path(real_runs.__file__).parent
#: What the script imports, too, before it trains.
IMPORTED = ("pytest", "watchglass.diagnose.judgement", "watchglass.testing.rule_suite")
#: The first suite of each rule. The others are further ways to be sick, which the rule's own tests evaluate.
FIRST = list({suite.rule: suite for suite in reversed(suites())}.values())[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["sick", "healthy"])
@pytest.mark.parametrize("suite", FIRST, ids=lambda suite: suite.name)
def test_a_rule_is_live(tmp_path: Path, preloaded: Preloaded, suite: Suite, which: str) -> None:
    cls = suite.load()
    if cls.record is not RealRuns.record:
        pytest.skip("its tests start a process, or use no model of PyTorch")
    (spec,) = [spec for spec in cls().rules() if spec.name == suite.rule]
    parameters = ",".join(f"{key}={value}" for key, value in spec.parameters.items())
    rule = f"{suite.rule}:{parameters}" if parameters else suite.rule
    options = ["--run", str(tmp_path / "run"), "--rules", rule, "--save-interval", "1"]
    script = [str(TESTS / "real_run.py"), str(suite.file), suite.name, which]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [str(preloaded.importing(*IMPORTED)), "-m", "watchglass", "run", *options, *script]
    subprocess.run(command, check=True, env=environment, timeout=120)
    live = watchglass.open_run(tmp_path / "run").journal.findings  # what the evaluator found while it trained
    found = cls().found(live)
    assert bool(found) is (which == "sick"), found
