"""The models of a run in a verdict: each has a line, and a hundred of them stay readable."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from synthetic_steps import in_turns, modules, of_model, training
from watchglass.cli import main
from watchglass.config import EvaluatorConfig
from watchglass.diagnose import verdict
from watchglass.evaluate import PartialEvaluation, merge, replay, replay_part
from watchglass.records import ModelSummary, Severity, Status, Verdict
from watchglass.rules import default_rules
from watchglass.run import open_run
from watchglass.testing import Step, build_run
from watchglass.view import Judged, Terms, markdown_document, verdict_text
from watchglass.view.models import models_named
from watchglass.view.settings import setting_rows
from watchglass.view.verdict_sentences import headline


def _two(path: Path) -> Path:
    """A healthy model, and one that diverges."""
    healthy = training(120, loss=lambda n: 2.0 * 0.97**n)
    sick = training(120, loss=lambda n: 1.0 if n < 40 else 0.3 * 1.3 ** (n - 40))
    build_run(path, in_turns(healthy, of_model(sick, 1)), modules=modules(2))
    return path


def _verdict(path: Path) -> Verdict:
    run = open_run(str(path))
    return verdict(run, replay(str(path), default_rules()))


def test_each_model_has_its_own_line_and_the_worst_is_first(run_path: Path) -> None:
    found = _verdict(_two(run_path))
    first, second = found.models
    assert (first.findings, first.worst) == (0, None)
    assert second.worst is Severity.ERROR
    text = verdict_text(found)
    lines = [line for line in text.splitlines() if line.startswith("model")]
    assert lines[0].startswith("model_2: 120 training steps (19 examined), training loss ")
    assert lines[0].endswith("findings") or lines[0].endswith("finding")
    assert lines[1].startswith("model: 120 training steps (19 examined), training loss ")
    assert found.metrics == {}
    assert re.search(r"since step [1-9]\d+, in model_2 \(trained since step 1\)", " ".join(text.split()))
    assert "240 training steps" in text
    assert "model\\_2: 120 training steps" in markdown_document(Judged([found], Terms()))


def test_json_has_the_models_and_says_whose_each_finding_is(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", str(_two(run_path)), "--format", "json"])
    data = json.loads(capsys.readouterr().out)
    models = [(each["name"], each["train_steps"], each["first_step"]) for each in data["models"]]
    assert models == [("model", 120, 0), ("model_2", 120, 1)]
    assert {each["model"] for each in data["findings"]} == {1}
    assert [each["models"] for each in data["diagnoses"]] == [[1]] * len(data["diagnoses"])


def test_a_single_model_has_metrics_and_no_line_of_its_own(run_path: Path) -> None:
    build_run(run_path, training(40), modules=modules(1))
    found = _verdict(run_path)
    assert found.models == ()
    assert set(found.metrics) == {"training loss"}


def test_a_hundred_models_stay_readable(run_path: Path) -> None:
    found = _verdict(_two(run_path))
    many = [replace(found.models[0], model=n, name=f"model_{n + 1}", type="Net") for n in range(100)]
    many[60] = replace(many[60], findings=2, worst=Severity.WARNING)
    many[70] = replace(many[70], findings=1, worst=Severity.ERROR)
    text = verdict_text(replace(found, models=tuple(many)), verbose=True)
    lines = [line for line in text.splitlines() if line.startswith(("model_", "and 93"))]
    assert [line.split()[0] for line in lines[:3]] == ["model_71", "model_61", "model_1"]
    assert len(lines) == 8
    assert lines[-1] == "and 93 further models; no findings in them"
    brief = verdict_text(replace(found, models=tuple(many)))
    assert [line.split()[0] for line in brief.splitlines() if line.startswith(("model_", "and 98"))] == [
        "model_71",
        "model_61",
        "and",
    ]


def test_settings_say_whose_they_are(run_path: Path) -> None:
    facts = [
        {"type": "SGD", "groups": [{"lr": 0.5}], "model": 0}, {"type": "Adam", "groups": [{"lr": 0.25}], "model": 1},
    ]  # fmt: skip
    build_run(run_path, [Step({"loss": 1.0}, facts={"optimizer": data}) for data in facts])
    rows = setting_rows(open_run(str(run_path)))
    assert [text for name, text in rows if name == "Optimizer"] == [
        "model, SGD: lr 0.5", "model_2, Adam: lr 0.25",
    ]  # fmt: skip


def test_settings_name_the_model_the_framework_and_the_plan(run_path: Path) -> None:
    described = {"model": {"module_types": {"": "Sequential", "fc": "Dense"}, "parameters": 12, "framework": "keras"}}
    planned = {"planned_steps": {"steps": 1230, "source": "epochs and steps of fit"}}
    loader = {"data_loader": {"loader": "train_loader", "batch_size": 64}}
    build_run(run_path, [Step({"loss": 1.0}, facts={**described, **planned, **loader})])
    rows = dict(setting_rows(open_run(str(run_path))))
    assert rows["Model"] == "Sequential: 2 modules, 12 parameters"
    assert rows["Planned steps"] == "1,230, from epochs and steps of fit"
    assert rows["Data loader"] == "train_loader: batch_size 64"


def test_a_line_says_what_there_is() -> None:
    from watchglass.view.models import model_line

    line = model_line(ModelSummary(4, "model_5", "Net", 30, 0.5, 0.75, 0.25, 0.9, 2))
    assert line == (
        "model_5 (Net): 30 training steps, training loss 0.5, validation loss 0.75 (best 0.25), accuracy 0.9; "
        "2 findings"
    )
    assert model_line(ModelSummary(1, "model_2", validation_loss=0.5)) == "model_2: not trained, validation loss 0.5"


def test_models_are_named_few_enough_to_read() -> None:
    assert models_named((1,)) == "model_2"
    assert models_named((0, 2)) == "model and model_3"
    assert models_named(tuple(range(10))) == "10 models (model, model_2, model_3 and 7 more)"


def test_show_lists_the_models_of_a_run_that_has_several(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", str(_two(run_path))])
    text = capsys.readouterr().out
    listed = text[text.index("Models") : text.index("Last values")].split("\n")[1:]
    assert [line.split()[:4] for line in listed if line.strip()] == [
        ["model", "120", "training", "steps"], ["model_2", "120", "training", "steps"],
    ]  # fmt: skip


def _second_hardly_examined(path: Path, captures: int, dead: float = 0.0) -> Path:
    """A healthy model, and one whose tensors were captured this many times in 120 steps."""
    few = training(120, due=lambda step: step < captures, dead=lambda step, layer: dead)
    build_run(path, in_turns(training(120), of_model(few, 1)), modules=modules(2))
    return path


def test_a_model_that_was_hardly_examined_is_not_covered_by_no_issues_found(run_path: Path) -> None:
    found = _verdict(_second_hardly_examined(run_path, 2, dead=1.0))
    statuses = {each.rule: each for each in found.statuses}
    assert statuses["DeadRelu"].status is Status.STARVED
    assert statuses["DeadRelu"].reason == "tensors were examined at fewer than 8 training steps of model_2 (2 of 120)"
    assert statuses["LossNotDecreasing"].status is Status.NO_ISSUES_FOUND, "it looks at every step"
    assert found.status == "not judged"
    assert headline(found) == (
        "not judged: 1 of 2 models could not be judged: model_2 was examined at 2 of 120 training steps"
    )


def test_a_model_that_was_examined_often_enough_is_judged(run_path: Path) -> None:
    healthy = _verdict(_second_hardly_examined(run_path, 8))
    assert headline(healthy) == "no issues found"
    assert {each.rule: each.status for each in healthy.statuses}["DeadRelu"] is Status.NO_ISSUES_FOUND


def test_what_a_rule_found_in_one_model_counts_though_another_was_hardly_examined(run_path: Path) -> None:
    sick = training(120, dead=lambda step, layer: 1.0)
    hardly = of_model(training(120, due=lambda step: step < 2), 1)
    build_run(run_path, in_turns(sick, hardly), modules=modules(2))
    found = _verdict(run_path)
    assert found.status == "issues found"
    assert {each.rule: each.status for each in found.statuses}["DeadRelu"] is Status.ISSUES_FOUND


def test_parts_of_an_evaluation_give_the_same_statuses_of_hardly_examined_models(run_path: Path) -> None:
    config = EvaluatorConfig(str(_second_hardly_examined(run_path, 2)), None, tuple(default_rules()))
    half = len(config.rules) // 2
    parts = [
        PartialEvaluation.from_json(json.loads(json.dumps(replay_part(run_path, config, rules=numbers).to_json())))
        for numbers in (range(half), range(half, len(config.rules)))
    ]
    assert merge(parts, config.rules).statuses == replay(run_path, config.rules).statuses


def test_a_short_model_that_was_examined_at_each_step_was_examined_enough() -> None:
    assert not ModelSummary(0, "model", train_steps=5, examined_steps=5).hardly_examined
    assert ModelSummary(0, "model", train_steps=50, examined_steps=5).hardly_examined
    assert not ModelSummary(0, "model", train_steps=50).hardly_examined, "unknown"


def test_a_model_is_called_as_the_script_calls_it() -> None:
    from watchglass.view.models import model_line

    assert model_line(ModelSummary(1, "model_2", "Net", 30, variable="D")) == "D (model_2, Net): 30 training steps"
    assert model_line(ModelSummary(0, "model", "Net", 30, variable="model")) == "model (Net): 30 training steps"
