"""Each rule with a test of a real run fires under ``watchglass run``, and does not on the healthy twin."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import real_runs
import watchglass
from preloaded import Preloaded
from real_runs import RealRuns, Suite, recorded, suites
from watchglass.config import RuleSpec
from watchglass.evaluate import replay

TESTS = Path(real_runs.__file__).parent
#: What the script imports, too, before it trains.
IMPORTED = ("pytest", "watchglass.diagnose.judgement", "watchglass.testing.rule_suite")
#: The first suite of each rule. The others are further ways to be sick, which the rule's own tests evaluate.
FIRST = list({suite.rule: suite for suite in reversed(suites())}.values())[::-1]


def loaded(suite: Suite) -> type[RealRuns]:
    """Its class, whose runs are those of a model of PyTorch."""
    cls = suite.load()
    if cls.record is not RealRuns.record:
        pytest.skip("its tests start a process, or use no model of PyTorch")
    return cls


def own(cls: type[RealRuns]) -> RuleSpec:
    """The rule with the parameters that its tests give it."""
    (spec,) = [spec for spec in cls().rules() if spec.name == cls.rule]
    return spec


def found_live(folder: Path, preloaded: Preloaded, suite: Suite, which: str) -> list[str]:
    """What the evaluator found while it trained."""
    cls = loaded(suite)
    spec = own(cls)
    parameters = ",".join(f"{key}={value}" for key, value in spec.parameters.items())
    rule = f"{suite.rule}:{parameters}" if parameters else suite.rule
    options = ["--run", str(folder / "run"), "--rules", rule, "--save-interval", "1"]
    script = [str(TESTS / "real_run.py"), str(suite.file), suite.name, which]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [str(preloaded.importing(*IMPORTED)), "-m", "watchglass", "run", *options, *script]
    subprocess.run(command, check=True, env=environment, timeout=120)
    return cls().found(watchglass.open_run(folder / "run").journal.findings)


@pytest.mark.slow
@pytest.mark.parametrize("suite", FIRST, ids=lambda suite: suite.name)
def test_a_rule_is_live(tmp_path: Path, preloaded: Preloaded, suite: Suite) -> None:
    assert found_live(tmp_path, preloaded, suite, "sick")


@pytest.mark.slow
@pytest.mark.parametrize("suite", FIRST, ids=lambda suite: suite.name)
def test_it_does_not_fire_on_the_healthy_twin(tmp_path: Path, preloaded: Preloaded, suite: Suite) -> None:
    """Trained in this process, unless times matter: tests/properties compare findings of a live run and its replay."""
    cls = loaded(suite)
    if cls.profiler:
        assert found_live(tmp_path, preloaded, suite, "healthy") == []
    else:
        run = recorded(cls, tmp_path, sick=False, alone=True)
        assert cls().found(replay(run, [own(cls)]).findings) == []
