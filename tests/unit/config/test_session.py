"""The configuration of a session: what settings it takes, and its way to another process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from watchglass.config import (
    DEFAULT_COLLECTIONS,
    Collection,
    EvaluatorConfig,
    ModeSteps,
    ParameterError,
    RuleSpec,
    SessionConfig,
    SettingsLayer,
    combine,
)
from watchglass.errors import InvalidValueError
from watchglass.records import Severity


def names(config: SessionConfig) -> list[str]:
    return [collection.name for collection in config.collections]


def test_configurations_survive_the_way_through_the_environment() -> None:
    config = SessionConfig(
        run="runs/x",
        attempt=2,
        collections=(
            Collection("weights", save_interval=7, modes={"eval": {"save_steps": (1, 2)}}, reductions=("median",)),
            Collection("mine", include_regex=("a,b",), roles=("weight",)),  # type: ignore[arg-type]
        ),
        overhead_budget=0.02,
        include_workers="one",
        modes={"predict": {"save_interval": 3}},  # type: ignore[dict-item]
        facts=("batch",),
        overrides={"save_interval": "7"},
    )
    environ = config.to_env()
    json.loads(*environ.values())
    again = SessionConfig.from_env(environ)
    assert again is not None
    assert again.run.endswith("/runs/x")
    assert {**vars(again), "run": ""} == {**vars(config), "run": ""}
    assert SessionConfig.from_env({}) is None

    evaluator = EvaluatorConfig("runs/x", 0, (RuleSpec("DeadRelu", {"threshold_layer": 30.0}),), Severity.ERROR)
    back = EvaluatorConfig.from_line(evaluator.to_line())
    assert (back.rules, back.stop_on, back.attempt) == (evaluator.rules, Severity.ERROR, 0)


def test_a_list_of_collections_means_exactly_these() -> None:
    config = SessionConfig("run", collections=["weights", Collection("outputs"), {"name": "inputs"}])  # type: ignore[arg-type, list-item]
    assert names(config) == ["weights", "outputs", "inputs"]
    assert SessionConfig("run", collections=()).collections == ()


def test_a_table_of_collections_changes_what_is_kept_by_default() -> None:
    table: Any = {"inputs": True, "updates": False, "gradients": {"save_raw": True}, "mine": {"tensors": ["x"]}}
    config = SessionConfig("run", collections=table)
    assert names(config) == ["weights", "biases", "gradients", "outputs", "relu_output", "router", "inputs", "mine"]
    assert config.collections[2] == Collection("gradients", save_raw=True)


def test_later_sources_come_first_and_tables_add_up() -> None:
    file: Any = {"collections": {"gradients": {"save_interval": 5, "save_raw": True}}, "save_interval": 10}
    code: Any = {"collections": {"gradients": {"save_interval": 6}, "inputs": {}}, "overhead_budget": 0.5}
    line: Any = {"collections": {"gradients": {"end_step": 9}}, "save_interval": "20"}
    config = SessionConfig("run", **combine(file, code, line))
    assert (config.save_interval, config.overhead_budget) == (20, 0.5)
    assert Collection("gradients", save_interval=6, save_raw=True, end_step=9) in config.collections
    assert set(DEFAULT_COLLECTIONS) - set(config.collections) == {Collection("gradients")}
    exact: Any = {"collections": ["weights"]}
    assert names(SessionConfig("run", **combine(file, exact, line))) == ["weights", "gradients"]


def test_modes_of_several_sources_add_up_setting_by_setting() -> None:
    file: Any = {
        "modes": {"eval": {"save_interval": 5, "end_step": 50}},
        "collections": {"outputs": {"modes": {"eval": {"save_interval": 2}}}},
    }
    code: Any = {
        "modes": {"predict": ModeSteps(save_steps=(1,)), "eval": ModeSteps(start_step=9)},
        "collections": {"outputs": {"modes": {"predict": ModeSteps(save_steps=(0,))}}},
    }
    line: Any = {
        "modes": {"predict": {"end_step": "7"}},
        "collections": {"outputs": {"modes": {"eval": {"save_interval": "3"}}}},
    }
    config = SessionConfig("run", **combine(file, code, line))
    assert config.modes == {
        "eval": ModeSteps(save_interval=5, start_step=9, end_step=50),
        "predict": ModeSteps(save_steps=(1,), end_step=7),
    }
    assert next(c for c in config.collections if c.name == "outputs").modes == {
        "eval": ModeSteps(save_interval=3),
        "predict": ModeSteps(save_steps=(0,)),
    }
    assert SessionConfig("run", **combine(file, {"modes": None})).modes is None
    assert file["modes"] == {"eval": {"save_interval": 5, "end_step": 50}}


def test_what_a_file_defines_is_known_to_the_command_line_whatever_a_script_keeps() -> None:
    file: Any = {"collections": {"first_layer": {"modules": ["0"]}}}
    line: Any = {"collections": {"first_layer": {"save_interval": "5"}}}
    launched = SessionConfig("run", **combine(file, line), overrides=line)
    config = launched.with_settings({"collections": ["weights"]})
    assert config.collections == (
        Collection("weights"),
        Collection("first_layer", modules=("0",), save_interval=5),
    )


def test_a_script_says_more_than_a_file_and_less_than_the_command_line() -> None:
    line: Any = {"save_interval": "5", "collections": {"inputs": {}}}
    environ = SessionConfig("run", **combine({"save_interval": 3, "save_raw": True}, line), overrides=line).to_env()
    launched = SessionConfig.from_env(environ)
    assert launched is not None
    config = launched.with_settings({"save_interval": 99, "collections": ["weights"], "queue_bytes": 1000})
    assert (config.save_interval, config.save_raw, config.queue_bytes) == (5, True, 1000)
    assert names(config) == ["weights", "inputs"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"save_intervall": 3}, 'SessionConfig: save_intervall is unknown (did you mean "save_interval"?)'),
        ({"zzz": 3}, "zzz is unknown; known are collections, save_interval"),
        ({"include_workers": "some"}, "include_workers must be one of all, one but got 'some'"),
        ({"facts": ["bach"]}, 'but got \'bach\' (did you mean "batch"?)'),
        ({"modes": {"eval": {"end_step": -1}}}, "SessionConfig: modes.eval.end_step must be >= 0 but got -1"),
        ({"start_step": 3, "end_step": 2}, "SessionConfig: end_step must be after start_step (3) but got 2"),
        ({"collections": ["weights", "weights"]}, "collections names weights twice"),
        ({"collections": 3}, "collections must be a list or a table but got 3"),
        ({"collections": [3]}, "collections.0 must be a collection but got 3"),
        ({"collections": [{"include_regex": "x"}]}, "collections.0.name is missing"),
        ({"collections": {"gradients": 3}}, "collections.gradients must be a table of settings, true or false but"),
        ({"collections": {"gradients": {"save_raww": 1}}}, 'collections.gradients.save_raww is unknown (did you mean'),
        ({"collections": {"gradeints": {}}}, "collections.gradeints is invalid: collection 'gradeints' selects"),
        (
            {"collections": {"gradients": {"modes": {"eval": {"save_interval": 0}}}}},
            "SessionConfig: collections.gradients.modes.eval.save_interval must be >= 1 but got 0",
        ),
        ({"include_regex": "("}, "include_regex '(' does not compile"),
        ({"save_interval": float("inf")}, "SessionConfig: save_interval must be a whole number or none but got inf"),
        ({"modes": "eval"}, "SessionConfig: modes must be a table of tables of settings or none but got 'eval'"),
        ({"reductions": "mean,medium"}, "but got 'medium' (did you mean"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_named_with_its_path(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        SessionConfig("run").with_settings(settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ParameterError)


@pytest.mark.parametrize(
    ("file", "options", "words"),
    [
        ({"save_interval": 0}, {"queue_bytes": 9}, "a.toml: save_interval must be >= 1 but got 0"),
        ({"save_interval": 5}, {"save_interval": 0}, "--save_interval must be >= 1 but got 0"),
        ({"collections": ["weights"]}, {"collections": {"weights": {"end_step": -1}}}, "--collections.weights.end_"),
        (
            {"collections": {"weights": {"save_interval": 0}}},
            {"collections": {"weights": {"save_interval": 5}}},
            "a.toml: collections.weights.save_interval must be >= 1 but got 0",
        ),
        ({"collections": [3]}, {"collections": ["weights"]}, "a.toml: collections.0 must be a collection but got 3"),
        (
            {"start_step": 9},
            {"collections": {"weights": {"end_step": 5}}},
            "a.toml, with the options: collections.weights keeps no step in mode train",
        ),
        (
            {"collections": {"my.part": {"modules": ["a"], "start_step": 9}}},
            {"collections": {"my.part": {"end_step": 5}}},
            "a.toml, with the options: collections.my.part.end_step must be after start_step",
        ),
        (
            {"collections": [{"name": "weights", "start_step": 9}]},
            {"modes": {"train": {"end_step": 5}}},
            "a.toml, with the options: collections.weights keeps no step in mode train",
        ),
        ({"start_step": 9}, {"start_step": 7, "end_step": 5}, "--end_step must be after start_step (7)"),
    ],
)  # fmt: skip
def test_an_error_names_the_source_of_each_setting_in_it(
    file: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    layers = (
        SettingsLayer(file, "a.toml", lambda name: f"a.toml: {name}"),
        SettingsLayer(options, "the options", lambda n: f"--{n}"),
    )
    with pytest.raises(InvalidValueError) as raised:
        SessionConfig.merged("", SettingsLayer({"collections": ["gradients"]}), *layers)
    assert str(raised.value).startswith(words)
