"""Baselines that a custom rule asks of its view: of any column, and a key that cannot be is that rule's error alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watchglass.config import RuleSpec
from watchglass.errors import InvalidValueError
from watchglass.evaluate import replay
from watchglass.records import Evaluation, Status
from watchglass.tables import History
from watchglass.testing import Step, build_run

RULES = """
from watchglass.records import Severity
from watchglass.rules import Rule

class Asking(Rule):
    \"\"\"Tells the baselines before the last step.\"\"\"

    def check(self, view):
        keys = [("statistic", column, "gradient/x") for column in ("l2", "rms", "abs_mean", "std")]
        medians = [view.baseline(key).median for key in (*keys, ("scalar", "loss"))]
        if view.train_step == 29:
            yield self.finding(view, severity=Severity.WARNING, message=repr(medians), value=0.0, limit=0.0)

class Mistaken(Rule):
    \"\"\"Asks for what cannot be.\"\"\"

    def check(self, view):
        view.baseline(KEY)
        return ()
"""

NAMES = ("Mistaken", "Asking")


def evaluate(folder: Path, key: object = ()) -> Evaluation:
    (folder / "mine.py").write_text(RULES.replace("KEY", repr(key)))
    steps = [Step({"loss": 2.0}, {"gradient/x": np.array([3.0, -3.0, 3.0, -3.0])}) for _ in range(30)]
    return replay(build_run(folder / "run", steps), [RuleSpec(f"{folder}/mine.py:{name}") for name in NAMES])


def test_a_baseline_is_kept_of_stored_and_derived_columns_and_of_scalars(tmp_path: Path) -> None:
    (finding,) = evaluate(tmp_path).findings
    assert json.loads(finding.message) == pytest.approx([6.0, 3.0, 3.0, 3.0, 2.0])


@pytest.mark.parametrize("key", [("scalar",), ("statistic", "rms"), ("statistic", "median", "gradient/x"), "scalar"])
def test_a_key_that_cannot_be_ends_only_the_rule_that_asked(tmp_path: Path, key: object) -> None:
    evaluation = evaluate(tmp_path, key)
    mistaken, asking = evaluation.statuses
    assert (mistaken.status, asking.status) == (Status.ERROR, Status.ISSUES_FOUND)
    assert "InvalidValueError" in mistaken.reason


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (("scalar",), r'needs a key \("scalar", NAME\) or .* but got \(\'scalar\',\)'),
        (("scalar", 3), "but got"),
        (("tensor", "l2", "x"), "but got"),
        ((), "but got"),
        (("statistic", "l3", "x"), "column of a baseline must be one of count, nan, .* but got 'l3'"),
    ],
)
def test_a_key_that_cannot_be_is_refused_and_not_kept(key: Any, words: str) -> None:
    history = History()
    with pytest.raises(InvalidValueError, match=words):
        history.baseline(key)
    assert history.baseline_keys == ()
