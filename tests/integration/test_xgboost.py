"""Boosters watched through XGBoost's own callback: what is recorded, how it is judged, what the training notices."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from sklearn.base import clone
from xgboost.callback import EarlyStopping, LearningRateScheduler, TrainingCallback

import watchglass
from evaluators.stops import commit_stop
from watchglass import Collection, Mode, Role, open_run
from watchglass.config import RuleSpec, SessionConfig
from watchglass.diagnose import verdict
from watchglass.errors import InvalidValueError, TrainingStopped, UnknownNameError
from watchglass.evaluate import replay
from watchglass.records import Evaluation, Status
from watchglass.rules import built_in_knowledge
from watchglass.session import current_hook

Matrices = tuple[xgboost.DMatrix, xgboost.DMatrix]


@pytest.fixture
def table() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(300, 6))
    return inputs, (inputs[:, 0] + inputs[:, 1] * inputs[:, 2] + 0.3 * random.normal(size=300) > 0).astype(int)


@pytest.fixture
def data(table: tuple[Any, Any]) -> Matrices:
    inputs, labels = table
    return xgboost.DMatrix(inputs[:150], labels[:150]), xgboost.DMatrix(inputs[150:], labels[150:])


def boost(
    data: Matrices,
    rounds: int,
    *callbacks: TrainingCallback,
    names: Sequence[str] = ("train", "validation"),
    **parameters: Any,
) -> tuple[xgboost.Booster, dict[str, Any]]:
    found: dict[str, Any] = {}
    model = xgboost.train(
        {"objective": "binary:logistic", "nthread": 1, "seed": 1, **parameters}, data[0], rounds,
        evals=list(zip(data, names, strict=False)), evals_result=found, callbacks=list(callbacks), verbose_eval=False,
    )  # fmt: skip
    return model, found


def watching(path: Path, **settings: Any) -> TrainingCallback:
    return watchglass.callback("xgboost", run=path, **{"strict": True, **settings})


def judged(path: Path) -> Evaluation:
    return replay(path, [RuleSpec("LossNotDecreasing"), RuleSpec("LossIncreasing"), RuleSpec("Overfit")])


# What is recorded


def test_each_round_is_a_step_with_every_metric_under_its_own_name(tmp_path: Path, data: Matrices) -> None:
    _, found = boost(data, 10, watching(tmp_path / "run"), eval_metric=["auc", "logloss", "error"])
    run = open_run(tmp_path / "run")
    assert run.finished
    assert run.steps() == run.steps(Mode.EVAL) == list(range(10))
    for metric in ("auc", "logloss", "error"):
        assert run.scalars(f"train-{metric}", Mode.TRAIN)[1].tolist() == found["train"][metric]
        assert run.scalars(f"validation-{metric}", Mode.EVAL)[1].tolist() == found["validation"][metric]
    assert run.scalars("loss")[1].tolist() == found["train"]["logloss"]
    assert run.scalars("loss", Mode.EVAL)[1].tolist() == found["validation"]["logloss"]
    assert set(run.tensor_names(role="loss")) == {"loss", "train-logloss", "validation-logloss"}
    assert run.tensor("train-auc").info.role is Role.METRIC


def test_feature_importances_are_those_of_the_model_one_value_for_each_feature(tmp_path: Path, data: Matrices) -> None:
    model, _ = boost(data, 11, watching(tmp_path / "run", save_interval=5))
    run = open_run(tmp_path / "run")
    for kind in ("weight", "gain", "cover"):
        tensor = run.tensor(f"feature_importance/{kind}")
        assert tensor.steps() == [0, 5, 10]
        scores = model.get_score(importance_type=kind)
        expected = [scores.get(f"f{index}", 0.0) for index in range(6)]
        np.testing.assert_allclose(tensor.value(10), expected, rtol=1e-6)
        assert tensor.reduction(10, "max") == pytest.approx(max(expected), rel=1e-6)
        assert tensor.info.collections == ("feature_importance",)
        assert tensor.info.role is Role.CUSTOM
    (fact,) = run.facts("model")
    assert (fact.data["objective"], fact.data["features"]) == ("binary:logistic", [f"f{index}" for index in range(6)])


def test_a_collection_of_that_name_says_what_is_kept_of_feature_importances(tmp_path: Path, data: Matrices) -> None:
    rare = Collection("feature_importance", include_regex=("/gain$",), save_interval=4)
    often = Collection("gradients", save_interval=1)
    boost(data, 9, watching(tmp_path / "run", collections=[rare, often]))
    run = open_run(tmp_path / "run")
    assert run.tensor_names(regex="importance") == ["feature_importance/gain"]
    assert run.tensor("feature_importance/gain").steps() == [0, 4, 8]
    assert run.tensor("feature_importance/gain").values() == {}, "whole vectors were not asked for"


def test_a_schedule_of_the_learning_rate_is_followed(tmp_path: Path, data: Matrices) -> None:
    rates = [0.5, 0.5, 0.25, 0.25]
    boost(data, 4, LearningRateScheduler(rates), watching(tmp_path / "run", save_interval=1))
    facts = open_run(tmp_path / "run").facts("optimizer")
    assert [(fact.data["groups"][0]["lr"], fact.data["type"]) for fact in facts] == [(0.5, "gbtree"), (0.25, "gbtree")]


@pytest.mark.parametrize(
    ("parameters", "shapes"),
    [
        ({"booster": "dart", "rate_drop": 0.5}, {"weight": (6,), "gain": (6,), "cover": (6,)}),
        ({"booster": "gblinear"}, {"weight": (6,)}),
        ({"booster": "gblinear", "objective": "multi:softprob", "num_class": 3}, {"weight": (6, 3)}),
        ({"objective": "multi:softprob", "num_class": 3}, {"weight": (6,), "gain": (6,), "cover": (6,)}),
        ({"objective": "reg:absoluteerror"}, {"weight": (6,), "gain": (6,), "cover": (6,)}),
        ({"objective": "survival:cox"}, {"weight": (6,), "gain": (6,), "cover": (6,)}),
    ],
)  # fmt: skip
def test_every_booster_and_objective(
    tmp_path: Path, data: Matrices, parameters: dict[str, Any], shapes: dict[str, Any]
) -> None:
    boost(data, 3, watching(tmp_path / "run"), **parameters)
    run = open_run(tmp_path / "run")
    prefix = "feature_importance/"
    names = run.tensor_names(regex=f"^{prefix}")
    assert {name.removeprefix(prefix): run.tensor(name).info.shape for name in names} == shapes
    assert len(run.scalars("loss")[0]) == 3


def test_cross_validation_records_means_and_deviations(
    tmp_path: Path, data: Matrices, caplog: pytest.LogCaptureFixture
) -> None:
    parameters = {"objective": "binary:logistic", "nthread": 1}
    callback = watching(tmp_path / "run")
    frame = xgboost.cv(parameters, data[0], 5, nfold=3, seed=1, callbacks=[callback], as_pandas=False)
    run = open_run(tmp_path / "run")
    assert run.scalars("loss")[1].tolist() == frame["train-logloss-mean"]
    assert run.scalars("loss", Mode.EVAL)[1].tolist() == frame["test-logloss-mean"]
    assert run.scalars("test-logloss-std", Mode.EVAL)[1].tolist() == frame["test-logloss-std"]
    assert not caplog.records, "that there are no feature importances is no news"


def test_a_round_that_another_callback_ends_early_is_recorded_too(tmp_path: Path, data: Matrices) -> None:
    stopping = EarlyStopping(rounds=2, data_name="validation", metric_name="logloss")
    _, found = boost(data, 100, stopping, watching(tmp_path / "run"), max_depth=8, eta=1.0)
    assert len(found["train"]["logloss"]) < 100
    assert open_run(tmp_path / "run").scalars("loss")[1].tolist() == found["train"]["logloss"]


# Names of the training data and of the loss


def test_without_a_training_set_one_warning_says_what_to_do(
    tmp_path: Path, data: Matrices, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "watchglass"):
        xgboost.train(
            {"objective": "binary:logistic", "nthread": 1}, data[0], 3, evals=[(data[1], "a"), (data[1], "b")],
            callbacks=[watching(tmp_path / "run")], verbose_eval=False,
        )  # fmt: skip
    (message,) = (record.getMessage() for record in caplog.records)
    assert "(a, b)" in message
    assert 'add (dtrain, "train") to evals, or give train="..."' in message
    run = open_run(tmp_path / "run")
    assert run.scalars("loss", Mode.EVAL)[1].tolist() == run.scalars("b-logloss", Mode.EVAL)[1].tolist()


def test_the_training_set_can_be_named(tmp_path: Path, data: Matrices, caplog: pytest.LogCaptureFixture) -> None:
    _, found = boost(data, 3, watching(tmp_path / "run", train="a"), names=["a", "training_copy"])
    assert not caplog.records
    run = open_run(tmp_path / "run")
    assert run.scalars("loss")[1].tolist() == found["a"]["logloss"]
    assert run.scalars("loss", Mode.EVAL)[1].tolist() == found["training_copy"]["logloss"]


def test_a_metric_of_ones_own_can_be_the_loss(tmp_path: Path, data: Matrices, caplog: pytest.LogCaptureFixture) -> None:
    def distance(predictions: Any, matrix: xgboost.DMatrix) -> tuple[str, float]:
        return "distance", float(np.abs(predictions - matrix.get_label()).mean())

    for name, given in (("without", ""), ("with", "distance")):
        xgboost.train(
            {"objective": "binary:logistic", "disable_default_eval_metric": 1, "nthread": 1}, data[0], 3,
            evals=[(data[0], "train")], custom_metric=distance, verbose_eval=False,
            callbacks=[watching(tmp_path / name, loss=given)],
        )  # fmt: skip
    (message,) = (record.getMessage() for record in caplog.records)
    assert "none of the metrics of train (distance)" in message
    run = open_run(tmp_path / "with")
    assert run.scalars("loss")[1].tolist() == run.scalars("train-distance")[1].tolist()
    assert run.tensor("train-distance").info.role is Role.LOSS
    assert "loss" not in open_run(tmp_path / "without").tensor_names()


def test_the_rank_is_that_of_xgboosts_own_communicator(
    tmp_path: Path, data: Matrices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xgboost.collective, "is_distributed", lambda: True)
    monkeypatch.setattr(xgboost.collective, "get_rank", lambda: 3)
    boost(data, 2, watching(tmp_path / "run"))
    assert open_run(tmp_path / "run").workers == ["worker_3"]


# How it is judged


@pytest.mark.parametrize(
    ("rule", "sick", "healthy"),
    [
        ("Overfit", {"eta": 0.5, "max_depth": 8}, {"eta": 0.05, "max_depth": 2, "lambda": 5, "min_child_weight": 10}),
        ("LossNotDecreasing", {"eta": 0.0}, {"eta": 0.02}),
        ("LossNotDecreasing", {"gamma": 1e6}, {"gamma": 0.1}),
        ("LossIncreasing", {"objective": "reg:squarederror", "eta": 2.4},
         {"objective": "reg:squarederror", "eta": 0.1}),
    ],
    ids=["trees too deep", "learning rate 0", "no split is worth it", "steps too long"],
)  # fmt: skip
def test_rules_judge_a_booster(
    tmp_path: Path, data: Matrices, rule: str, sick: dict[str, Any], healthy: dict[str, Any]
) -> None:
    said = {}
    for name, parameters in (("sick", sick), ("healthy", healthy)):
        boost(data, 210, watching(tmp_path / name), **parameters)
        evaluation = judged(tmp_path / name)
        assert {status.status for status in evaluation.statuses} <= {Status.ISSUES_FOUND, Status.NO_ISSUES_FOUND}
        said[name] = [finding.rule for finding in evaluation.findings]
    assert set(said["sick"]) >= {rule}
    assert rule not in said["healthy"]


def test_rules_about_layers_do_not_apply_to_trees(tmp_path: Path, data: Matrices) -> None:
    boost(data, 60, watching(tmp_path / "run"))
    statuses = {status.rule: status.status for status in replay(tmp_path / "run").statuses}
    judging = {rule for rule, status in statuses.items() if status is Status.NO_ISSUES_FOUND}
    assert judging >= {"LossNotDecreasing", "LossIncreasing", "ZeroLoss", "Overfit", "ExplodingTensor"}
    assert Status.STARVED not in statuses.values()
    of_layers = {"DeadRelu", "VanishingGradient", "PoorWeightInitialization", "WeightUpdateRatio", "UnchangedTensor"}
    assert {statuses[rule] for rule in of_layers} == {Status.NOT_APPLICABLE}


def test_labels_that_fit_nothing_are_learned_by_heart(tmp_path: Path, table: tuple[Any, Any]) -> None:
    inputs, labels = table
    labels = np.random.default_rng(1).permutation(labels)
    data = xgboost.DMatrix(inputs[:150], labels[:150]), xgboost.DMatrix(inputs[150:], labels[150:])
    boost(data, 60, watching(tmp_path / "run"), max_depth=6)
    (finding,) = judged(tmp_path / "run").findings
    assert finding.rule == "Overfit"
    assert finding.causes


@pytest.mark.slow
def test_a_finding_stops_the_training_which_keeps_its_trees(tmp_path: Path, data: Matrices) -> None:
    rounds = 200_000
    callback = watching(tmp_path / "run", rules=["LossNotDecreasing"], stop_on="warning")
    model, _ = boost(data, rounds, callback, eta=0.0)
    run = open_run(tmp_path / "run")
    assert 200 <= model.num_boosted_rounds() < rounds
    assert len(run.steps()) == model.num_boosted_rounds()
    assert run.worker().lifecycle[-1]["status"] == "stopped"
    assert [finding.rule for finding in run.journal.findings] == ["LossNotDecreasing"]
    assert current_hook() is None


# What the training and its estimator notice


def test_scikit_learn_estimators_are_watched_and_so_are_their_clones(tmp_path: Path, table: tuple[Any, Any]) -> None:
    inputs, labels = table
    callback = watching(tmp_path / "run", train="validation_0")
    model = xgboost.XGBClassifier(n_estimators=4, n_jobs=1, callbacks=[callback])
    held_out = [(inputs[:150], labels[:150]), (inputs[150:], labels[150:])]
    for estimator in (model, clone(model)):
        estimator.fit(inputs[:150], labels[:150], eval_set=held_out, verbose=False)
        assert "watchglass" not in estimator.get_booster().save_config()
    first, second = (open_run(tmp_path / "run", attempt=attempt) for attempt in (0, 1))
    assert first.steps() == second.steps() == [0, 1, 2, 3]
    losses = model.evals_result()
    assert first.scalars("loss")[1].tolist() == losses["validation_0"]["logloss"]
    assert first.scalars("loss", Mode.EVAL)[1].tolist() == losses["validation_1"]["logloss"]


def test_a_pickled_estimator_loads_where_watchglass_is_not_installed(tmp_path: Path, table: tuple[Any, Any]) -> None:
    model = xgboost.XGBClassifier(n_estimators=2, n_jobs=1, callbacks=[watching(tmp_path / "run")])
    model.fit(*table, eval_set=[table], verbose=False)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    code = """
        import pickle, sys
        sys.modules["watchglass"] = None
        import numpy
        model = pickle.load(open(sys.argv[1], "rb"))
        print(model.fit(numpy.eye(4), [0, 1, 0, 1]).predict(numpy.eye(4)).shape)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "model.pickle")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "(4,)", done.stderr


def test_after_an_exception_the_callback_watches_the_next_training(tmp_path: Path, data: Matrices) -> None:
    def failing(predictions: Any, matrix: xgboost.DMatrix) -> Any:
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(1)
        return predictions - matrix.get_label(), np.ones(len(predictions))

    seen: list[int] = []
    callback = watching(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        xgboost.train({"nthread": 1}, data[0], 9, evals=[(data[0], "train")], obj=failing, callbacks=[callback],
                      verbose_eval=False)  # fmt: skip
    boost(data, 5, callback)
    first, second = (open_run(tmp_path / "run", attempt=attempt) for attempt in (0, 1))
    assert first.worker().lifecycle[-1]["status"] == "failed"
    assert len(first.scalars("loss")[0]) == 3
    assert second.worker().lifecycle[-1]["status"] == "finished"
    assert len(second.scalars("loss")[0]) == 5


def test_training_runs_without_a_name_are_separate_runs(in_tmp_path: Path, data: Matrices) -> None:
    callback = watchglass.callback("xgboost", strict=True)
    for _ in range(3):
        boost(data, 2, callback)
    runs = list((in_tmp_path / "runs").iterdir())
    assert [open_run(run).attempts for run in runs] == [[0]] * 3


def test_scalars_of_the_script_go_to_the_round(tmp_path: Path, data: Matrices) -> None:
    class Depth(TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            watchglass.save_scalar("round", epoch)
            return False

    boost(data, 4, Depth(), watching(tmp_path / "run"))
    steps, values = open_run(tmp_path / "run").scalars("round")
    assert steps.tolist() == values.tolist() == [0, 1, 2, 3]


SCRIPT = """
    import sys
    import numpy as np, xgboost
    random = np.random.default_rng(0)
    data = xgboost.DMatrix(random.normal(size=(50, 3)), random.integers(0, 2, 50))

    def train(rounds, *callbacks):
        xgboost.train({"objective": "binary:logistic"}, data, rounds, evals=[(data, "train"), (data, "again")],
                      callbacks=callbacks, verbose_eval=False)

    train(1)
    before = set(sys.modules)
    import watchglass
    callback = watchglass.callback("xgboost")
    train(3, callback)
    train(4, callback)
    print("imported", *sorted({name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
"""


def test_under_watchglass_run_all_training_runs_of_the_script_join_its_run(tmp_path: Path) -> None:
    (tmp_path / "train_xgb.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "watchglass", "run", "--run", "run", "train_xgb.py"]
    environ = {**os.environ, "WATCHGLASS_STRICT": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = open_run(tmp_path / "run")
    assert run.finished
    assert run.steps() == list(range(7))
    assert len(run.tensor("feature_importance/gain").values()) > 0
    assert not (tmp_path / "runs").exists()


def script(folder: Path, **environ: str) -> list[str]:
    """Runs the script by itself; returns the packages that watching has imported."""
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, timeout=240, check=True
    )
    return done.stdout.split()[1:]


def test_a_watched_booster_imports_nothing_that_a_guest_should_not(tmp_path: Path) -> None:
    imported = {name for name in script(tmp_path, WATCHGLASS_STRICT="1") if not name.startswith("_cython")}
    # pyarrow takes cloudpickle along where it finds it.
    assert imported <= {"watchglass", "pyarrow", "safetensors", "cloudpickle"}
    # XGBoost itself imports it where there is pandas, so it need not be among what is new; but it has been used.
    written = list((tmp_path / "runs").iterdir())
    assert written
    assert all(len(open_run(run).tensor("feature_importance/gain").reductions("l2")[1]) for run in written)


def test_switched_off_it_writes_nothing(tmp_path: Path) -> None:
    assert script(tmp_path, WATCHGLASS="0") == ["watchglass"]
    assert list(tmp_path.iterdir()) == []


def test_settings_come_from_the_file_too_and_those_of_the_script_come_first(
    tmp_path: Path, in_tmp_path: Path, data: Matrices
) -> None:
    file = """
        save_interval = 3
        [collections.feature_importance]
        save_raw = false
    """
    (tmp_path / "watchglass.toml").write_text(textwrap.dedent(file))
    for name, settings, steps in (("file", {}, [0, 3]), ("script", {"save_interval": 2}, [0, 2, 4])):
        boost(data, 6, watching(tmp_path / name, **settings))
        tensor = open_run(tmp_path / name).tensor("feature_importance/gain")
        assert tensor.steps() == steps
        assert not tensor.values()


# Bad input


def test_what_is_wrong_is_said_where_the_callback_is_made() -> None:
    with pytest.raises(InvalidValueError, match="save_interval"):
        watchglass.callback("xgboost", save_interval=0)
    with pytest.raises(UnknownNameError, match="Overfit"):
        watchglass.callback("xgboost", rules=["Overfitt"])
    with pytest.raises(InvalidValueError, match="stop_on"):
        watchglass.callback("xgboost", stop_on="errors")


def test_without_xgboost_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['xgboost'] = None; import watchglass; watchglass.callback('xgboost')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1].startswith("watchglass.errors.MissingExtraError")
    assert "watchglass[xgboost]" in done.stderr


def test_once_stopped_under_watchglass_run_the_script_trains_no_more(
    tmp_path: Path, data: Matrices, launched_with: Callable[[SessionConfig], None]
) -> None:
    launched_with(SessionConfig(run=str(tmp_path / "run")))
    assert json.loads(os.environ["WATCHGLASS_SESSION"])["run"] == str(tmp_path / "run")

    class StopAtTwo(TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            hook = current_hook()
            if epoch == 1 and hook is not None:
                commit_stop(tmp_path / "run", 3, hook)
            return False

    callback = watchglass.callback("xgboost")
    model, _ = boost(data, 9, callback, StopAtTwo())
    assert model.num_boosted_rounds() == 3
    with pytest.raises(TrainingStopped):
        boost(data, 9, callback)


# Overfitting


def test_deep_trees_overfit_by_causes_of_trees(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(400, 20))
    labels = (inputs[:, 0] + random.normal(size=400) * 1.5 > 0).astype(int)
    data = xgboost.DMatrix(inputs[:200], labels[:200]), xgboost.DMatrix(inputs[200:], labels[200:])
    boost(data, 60, watching(tmp_path / "run"), max_depth=8, eta=0.5)
    evaluation = replay(tmp_path / "run")
    (diagnosis,) = verdict(open_run(tmp_path / "run"), evaluation).diagnoses
    assert diagnosis.causes[0].cause.id == "trees_overfit"
    advice = " ".join(diagnosis.what_to_try)
    assert all(word in advice for word in ("early_stopping_rounds", "max_depth", "eta"))
    networks = set(built_in_knowledge().causes) - built_in_knowledge().of_trees - {"nothing_to_learn"}
    assert not {each.cause.id for each in diagnosis.causes} & networks
    assert evaluation.findings[0].causes[0] == "trees_overfit"


@pytest.mark.parametrize("copied", [False, True])
def test_the_training_data_is_known_among_the_sets_of_an_estimator(
    tmp_path: Path, table: tuple[Any, Any], copied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    inputs, labels = table
    train = inputs[:150], labels[:150]
    model = xgboost.XGBClassifier(n_estimators=20, n_jobs=1, callbacks=[watching(tmp_path / "run")])
    same = (train[0].copy(), train[1].copy()) if copied else train
    model.fit(*train, eval_set=[(inputs[150:], labels[150:]), same], verbose=False)
    run, found = open_run(tmp_path / "run"), model.evals_result()
    assert run.scalars("loss", Mode.TRAIN)[1].tolist() == found["validation_1"]["logloss"]
    assert run.scalars("loss", Mode.EVAL)[1].tolist() == found["validation_0"]["logloss"]
    assert not caplog.records


def test_causes_of_trees_are_no_causes_of_networks() -> None:
    of_networks, of_trees = built_in_knowledge(), built_in_knowledge(trees=True)
    assert set(of_networks.support(["validation_rises"])) == {"overfitting"}
    assert set(of_trees.support(["validation_rises"])) == {"trees_overfit"}
    assert set(of_trees.support(["nonfinite_loss", "loss_is_zero"])) == {"bad_data", "loss_without_content"}
    assert of_trees.support(["input_bound"]) == of_networks.support(["input_bound"])
