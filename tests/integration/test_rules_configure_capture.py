"""Rules alone configure what a training run captures, and one whose data is not captured says so while it trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from watchglass import Mode, open_run
from watchglass.config import DEFAULT_COLLECTIONS, RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Role, Status

pytestmark = pytest.mark.usefixtures("preloaded_python")

RULES = '''
from watchglass import Mode, ModuleKind, Needs, Role, Rule, Severity

class Inputs(Rule):
    """Looks at inputs of Linear modules in training, and at outputs in evaluation."""

    needs = (
        Needs(role=Role.INPUT, module_kinds=(ModuleKind.LINEAR,)),
        Needs(role=Role.OUTPUT, modes=(Mode.EVAL,), max_interval=2),
        Needs(facts=("batch",)),
    )

    def check(self, view):
        return ()

class OneClass(Rule):
    """All labels of a batch are alike."""

    needs = (Needs(role=Role.LABEL, raw=True),)

    def check(self, view):
        for name in view.whole(Role.LABEL):
            labels = view.value(name)
            if (labels == labels[0]).all():
                message = f"all {len(labels)} labels are {labels[0]}"
                yield self.finding(view, severity=Severity.WARNING, message=message, tensors=[name])

class Often(Rule):
    """Wants gradients at every other step."""

    needs = (Needs(role=Role.GRADIENT, max_interval=2),)

    def check(self, view):
        return ()
'''

TRAINING = """
import torch
import watchglass
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
{watch}
for step in range(30):
    inputs = torch.randn(16, 8)
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    for step in range(5):
        model(torch.randn(16, 8))
"""


@pytest.fixture
def place(empty_home: Path) -> Path:
    (empty_home / "rules.py").write_text(RULES)
    return empty_home


def script(place: Path, watch: str = "") -> None:
    (place / "train.py").write_text(TRAINING.format(watch=watch))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=place, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "HOME": str(place)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def launch(place: Path, *words: str, watch: str = "", training: str = TRAINING) -> str:
    (place / "train.py").write_text(training.format(watch=watch))
    command = [sys.executable, "-m", "watchglass", "run", "--run", "run", *words, "train.py"]
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "HOME": str(place)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def roles(mode: Mode = Mode.TRAIN) -> set[str]:
    """Roles of the tensors of which there are statistics."""
    run = open_run("run")
    others = [role.value for role in Role if role not in (Role.LOSS, Role.METRIC)]
    return {role for role in others if any(len(run.tensor(name).steps(mode)) for name in run.tensor_names(role=role))}


def planned() -> dict[str, list[str]]:
    (fact,) = open_run("run").facts("capture_plan")
    return {mode: [row["name"] for row in rows] for mode, rows in fact.data["collections"].items()}


def statuses() -> dict[str, tuple[Status, str]]:
    return {status.rule: (status.status, status.reason) for status in open_run("run").journal.statuses}


def test_the_rules_of_a_script_are_all_that_has_to_be_said(place: Path) -> None:
    script(place, 'hook = watchglass.watch(model, run="run", rules=["rules.py:Inputs"])')
    assert planned() == {
        "train": ["losses", "rules.inputs.linear"], "eval": ["outputs"], "predict": []
    }  # fmt: skip
    assert roles() == {"input"}
    run = open_run("run")
    assert sorted(run.tensor_names(role="input")) == ["0.input.0", "2.input.0"]
    assert roles(Mode.EVAL) == {"output"}
    assert list(run.tensor("2.output").steps(Mode.EVAL)) == [0, 2, 4]
    assert statuses()["Inputs"][0] is Status.NO_ISSUES_FOUND


def test_the_rules_of_a_command_line_are_all_that_has_to_be_said(place: Path) -> None:
    launch(place, "--rules", "rules.py:Inputs,ExplodingGradient")
    assert roles() == {"input", "gradient"}
    assert roles(Mode.EVAL) == {"output"}
    assert {status for status, _ in statuses().values()} == {Status.NO_ISSUES_FOUND}


@pytest.mark.parametrize("words", [(), ("--rules", "default"), ("--evaluator", "none")])
def test_without_rules_of_ones_own_everything_is_as_ever(place: Path, words: tuple[str, ...]) -> None:
    launch(place, *words)
    assert planned() == {"train": [c.name for c in DEFAULT_COLLECTIONS], "eval": [], "predict": []}


def test_all_rules_add_to_what_the_default_ones_need(place: Path) -> None:
    launch(place, "--rules", "all")
    assert set(planned()["train"]) > {collection.name for collection in DEFAULT_COLLECTIONS}


@pytest.mark.parametrize(
    ("words", "watch", "kept"),
    [
        (("--collection", "weights"), "", {"gradient", "weight"}),
        (("--collection", "gradients:end_step=0"), "", set()),
        ((), 'watchglass.watch(model, collections=["weights"])', {"weight"}),
        ((), 'watchglass.watch(model, collections={"weights": True})', {"gradient", "weight"}),
        ((), 'watchglass.watch(model, collections={"gradients": False})', set()),
    ],
)
def test_what_is_said_explicitly_wins(place: Path, words: tuple[str, ...], watch: str, kept: set[str]) -> None:
    launch(place, "--rules", "ExplodingGradient", *words, watch=watch)
    assert roles() == kept


def test_a_file_wins_too_and_the_rule_says_what_it_lacks(place: Path) -> None:
    (place / "watchglass.toml").write_text('collections = ["weights", "outputs"]')
    launch(place, "--rules", "ExplodingGradient")
    assert roles() == {"weight", "output"}
    status, reason = statuses()["ExplodingGradient"]
    assert status is Status.STARVED
    assert reason == (
        "statistics of gradients are not captured: the collections of this run are weights, outputs; add collection "
        "gradients or leave collections to the rules"
    )


def test_an_interval_of_the_user_holds_and_the_rule_says_that_it_is_too_long(place: Path) -> None:
    launch(place, "--rules", "rules.py:Often", "--save-interval", "10")
    assert list(open_run("run").tensor("gradient/0.weight").steps(Mode.TRAIN)) == [0, 10, 20]
    status, reason = statuses()["Often"]
    assert status is Status.STARVED
    assert "every 10 steps; at most 2 are useful" in reason


def test_a_plan_is_reported_before_the_first_step_and_again_when_it_changes(place: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = watchglass.watch(model, run="run", collections=["weights"], strict=True)
    for step in range(6):
        if step == 3:
            watchglass.watch(model, collections={"gradients": True})
        loss = F.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    hook.close()
    facts = open_run("run").facts("capture_plan")
    names = [[row["name"] for row in fact.data["collections"]["train"]] for fact in facts]
    assert names == [["weights"], ["weights", "gradients"]]
    assert facts[0].global_step == 0
    assert facts[0].data["facts"]
    assert facts[0].data["keeps_tensors"] is True


def test_boosted_trees_keep_their_importances_whatever_the_rules_are(place: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 5))
    data = xgboost.DMatrix(x, (x[:, 0] > 0).astype(float))
    for rules in ("trees", "default", ["Overfit"]):
        callback = watchglass.callback("xgboost", run="run", rules=rules, calibration="sagemaker")
        xgboost.train({"objective": "binary:logistic"}, data, 5, evals=[(data, "train")], callbacks=[callback])
        assert "feature_importance/gain" in open_run("run").tensor_names(), rules
        subprocess.run(["rm", "-r", "run"], check=True)


def test_a_rule_reads_the_labels_that_it_has_asked_for(place: Path) -> None:
    one_class = TRAINING.replace("inputs[:, :4].argmax(1)", "torch.full((16,), int(step > 9))")
    assert "all 16 labels are 0" in launch(
        place, "--rules", "rules.py:OneClass", "--save-interval", "1", training=one_class
    )
    (finding,) = open_run("run").journal.findings
    assert (finding.step, finding.count, finding.tensors) == (0, 30, ("label",))
    (replayed,) = replay("run", [RuleSpec("rules.py:OneClass")]).findings
    assert replayed == finding
    assert open_run("run").tensor("label").value(3).shape == (16,)
