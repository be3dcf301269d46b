"""Settings from files: watchglass.toml, and the hook configuration of SageMaker Debugger."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchglass.config import Collection, ModeSteps, SessionConfig, combine, find_file, read_actions, read_file
from watchglass.errors import InvalidValueError, MissingFileError, WatchglassError

TOML = """
save_interval = 20
overhead_budget = 0.02
include_workers = "one"
facts = ["batch"]
modes.eval.save_interval = 1

[collections]
inputs = true
updates = false

[collections.gradients]
save_interval = 5
reductions = ["median"]

[collections.first_layer]
include_regex = ["^conv1"]
save_raw = true
modes.predict = {}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], Path]:
    def write(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_a_toml_file_sets_what_code_can_set(write: Callable[[str, Any], Path]) -> None:
    config = SessionConfig("run", **combine(read_file(write("watchglass.toml", TOML))))
    assert (config.save_interval, config.overhead_budget, config.include_workers) == (20, 0.02, "one")
    assert (config.facts, config.modes) == (("batch",), {"eval": ModeSteps(save_interval=1)})
    assert [collection.name for collection in config.collections] == [
        "weights", "biases", "gradients", "outputs", "relu_output", "router", "inputs", "first_layer",
    ]  # fmt: skip
    assert config.collections[2] == Collection("gradients", save_interval=5, reductions=("median",))
    assert config.collections[-1] == Collection(
        "first_layer", include_regex=("^conv1",), save_raw=True, modes={"predict": ModeSteps()}
    )


def test_a_toml_file_can_list_exactly_what_to_keep(write: Callable[[str, Any], Path]) -> None:
    path = write("watchglass.toml", 'collections = ["weights", {name = "outputs", save_interval = 3}]')
    assert SessionConfig("run", **combine(read_file(path))).collections == (
        Collection("weights"),
        Collection("outputs", save_interval=3),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("save_interval = 0", "save_interval must be >= 1 but got 0"),
        ("save_intervall = 3", 'save_intervall is unknown (did you mean "save_interval"?)'),
        ("run = 'x'", "run is unknown; known are collections"),
        ("[collections.gradients]\nsave_raw = 'perhaps'", "collections.gradients.save_raw must be true or false"),
        ("[collections.gradients]\nreductions = ['medain']", 'but got \'medain\' (did you mean "median"?)'),
        ("[collections.gradients]\nsave_every = 3", "collections.gradients.save_every is unknown"),
        ("[collections.gradients.modes.evla]", 'but got \'evla\' (did you mean "eval"?)'),
        ("modes.eval = 5", "modes.eval must be a table of settings but got 5"),
        ("[collections.weights]\nname = 'biases'", "collections.weights.name must be omitted or weights but got"),
        ("[collections.mine]\ntensors = [5]", "collections.mine.tensors must be a list of text but got [5]"),
        ("[collections.mine]\nmodule_kinds = ['relu']", "collections.mine.module_kinds must be one of linear,"),
        ("include_workers = 1", "include_workers must be text but got 1; the default is 'all'"),
        ("flush_interval_s = 0", "flush_interval_s must be > 0 but got 0"),
        ("flight_recorder = 'maybe'", "flight_recorder must be true or false but got 'maybe'"),
        ("overhead_budget = inf", "overhead_budget must be a finite number but got inf"),
        ("planned_steps = 2024-01-01", "planned_steps must be a whole number or none but got datetime.date("),
        ("[collections.gradients]\nstart_step = 9\nend_step = 3", "collections.gradients.end_step must be after"),
        ("start_step = 9\n[collections.gradients]\nend_step = 3", "collections.gradients keeps no step in mode train"),
        ("[collections.mine]\ninclude_regex = '('", "collections.mine.include_regex '(' does not compile: missing )"),
        ("[collections.mine]", "collections.mine is invalid: collection 'mine' selects nothing; set include_regex"),
        ("modes = 'eval'", "modes must be a table of tables of settings or none but got 'eval'"),
        ("collections.outputs.modes = ['eval']", "collections.outputs.modes must be a table of tables of settings"),
        ("save_interval = inf", "save_interval must be a whole number or none but got inf"),
        ("modes.eval.end_step = inf", "modes.eval.end_step must be a whole number or none but got inf"),
        ("flush_interval_s = inf", "flush_interval_s must be a finite number but got inf"),
        ("facts = 'none'", "facts must be a list but got 'none'; use [] for an empty list"),
        ("[collections.mine]\nmodules = {0 = false}", "collections.mine.modules must be a list of text but got {'0'"),
        ("save_interval 3", "is not valid TOML: Expected '=' after a key in a key/value pair (at line 1, column 15)"),
    ],
)  # fmt: skip
def test_a_bad_toml_file_is_named_with_the_key_in_one_line(
    write: Callable[[str, Any], Path], text: str, words: str
) -> None:
    path = write("watchglass.toml", text)
    with pytest.raises(InvalidValueError) as caught:
        SessionConfig.merged("", read_file(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidValueError, match=r"x\.toml cannot be read: 'utf-8' codec"):
        read_file(tmp_path / "x.toml")


# -- where it is found ------------------------------------------------------------------------------------------------


def test_the_nearest_file_above_is_found_but_not_above_the_repository(
    write: Callable[[str, Any], Path], tmp_path: Path
) -> None:
    outer, inner = write("watchglass.toml", ""), write("repo/watchglass.toml", "")
    deep = tmp_path / "repo" / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    assert find_file(folder=deep, environ={}) == inner
    inner.unlink()
    assert find_file(folder=deep, environ={}) is None
    (tmp_path / "repo" / ".git").rmdir()
    assert find_file(folder=deep, environ={}) == outer
    assert find_file(folder=deep, environ={"HOME": str(tmp_path / "repo")}) is None


def test_a_named_file_comes_before_the_environment_and_that_before_the_nearest(
    write: Callable[[str, Any], Path], in_tmp_path: Path
) -> None:
    write("watchglass.toml", "")
    theirs, named = write("hook.json", {}), write("named.toml", "")
    environ = {"SMDEBUG_CONFIG_FILE_PATH": str(theirs)}
    assert find_file(environ=environ) == theirs
    assert find_file(named, environ=environ) == named
    with pytest.raises(MissingFileError) as caught:
        find_file("named.tom")
    assert str(caught.value) == 'configuration file named.tom does not exist (did you mean "named.toml"?)'
    with pytest.raises(MissingFileError, match="of SMDEBUG_CONFIG_FILE_PATH does not exist"):
        find_file(environ={"SMDEBUG_CONFIG_FILE_PATH": "nowhere/x.json"})
    with pytest.raises(MissingFileError, match="is a folder"):
        find_file(in_tmp_path)


# -- the hook configuration of SageMaker Debugger ---------------------------------------------------------------------


def read_json(write: Callable[[str, Any], Path], content: Any) -> SessionConfig:
    return SessionConfig("run", **combine(read_file(write("hook.json", content))))


def test_a_hook_configuration_means_what_it_means_there(write: Callable[[str, Any], Path]) -> None:
    config = read_json(write, {
        "S3OutputPath": "s3://bucket/x",
        "LocalPath": "/opt/ml/output/tensors",
        "HookParameters": {
            "save_interval": "100", "eval.save_interval": "10", "train.end_step": "5000", "global.start_step": "3",
            "include_workers": "all", "save_raw_tensor": "true", "reductions": "min,abs_mean,l1_norm,abs_l2_norm",
            "export_tensorboard": "true", "include_regex": "relu,conv",
        },
        "CollectionConfigurations": [
            {"CollectionName": "gradients"},
            {"CollectionName": "losses", "CollectionParameters": None},
            {"CollectionName": "custom", "CollectionParameters": {
                "include_regex": ".*conv.*,.*fc.*", "save_histogram": "False", "save_interval": "50",
                "save_steps": "1,2,3", "predict.save_steps": "7", "reductions": "median,prod",
            }},
        ],
    })  # fmt: skip
    assert config.collections == (
        Collection("gradients"),
        Collection("losses"),
        Collection(
            "custom", include_regex=(".*conv.*", ".*fc.*"), save_histogram=False, save_interval=50,
            save_steps=(1, 2, 3), modes={"predict": ModeSteps(save_steps=(7,))},
            reductions=("median", "prod"), save_raw=False,
        ),
    )  # fmt: skip
    assert (config.save_interval, config.start_step, config.save_raw, config.include_workers) == (100, 3, True, "all")
    assert config.include_regex == ("relu", "conv")
    assert config.reductions == ("min", "abs_mean", "l1", "abs_l2")
    assert config.modes == {
        "eval": ModeSteps(save_interval=10),
        "predict": ModeSteps(),
        "train": ModeSteps(end_step=5000),
    }
    held = config.schedule(config.collections[0], "predict")
    assert held is not None
    assert (held.interval, held.start) == (100, 3)


def test_what_a_hook_configuration_does_not_say_is_as_documented_there(write: Callable[[str, Any], Path]) -> None:
    for content in ({}, {"HookParameters": None, "CollectionConfigurations": None}):
        config = read_json(write, content)
        assert (config.collections, config.save_interval, config.include_workers) == ((), 500, "one")
        assert config.save_raw is True
    assert read_json(write, {"HookParameters": {"reductions": "mean"}}).save_raw is False


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"HookParameter": {}}, 'HookParameter is unknown (did you mean "HookParameters"?)'),
        ({"HookParameters": {"save_intervall": 3}}, 'HookParameters.save_intervall is unknown (did you mean "save_'),
        ({"HookParameters": {"save_interval": "often"}}, "HookParameters.save_interval must be a whole number or none"),
        ({"HookParameters": {"eval.save_interval": 0}}, "HookParameters.eval.save_interval must be >= 1 but got 0"),
        ({"HookParameters": {"evla.save_interval": 1}}, "HookParameters.evla.save_interval is unknown (did you mean"),
        ({"HookParameters": {"save_raw_tensor": "maybe"}}, "HookParameters.save_raw_tensor must be true or false or"),
        ({"HookParameters": {"reductions": "medium"}}, "HookParameters.reductions must be one of min, max"),
        ({"HookParameters": {"start_step": 5, "end_step": 4}}, "HookParameters.end_step must be after start_step (5)"),
        ({"HookParameters": {"include_workers": "two"}}, "HookParameters.include_workers must be one of all, one"),
        ({"HookParameters": []}, "is not valid JSON"),
        ({"CollectionConfigurations": {}}, "is not valid JSON"),
        ([], "the file must be an object but got []"),
        ({"HookParameters": [1]}, "HookParameters must be an object but got [1]"),
        ({"CollectionConfigurations": {"a": 1}}, "CollectionConfigurations must be a list but got {'a': 1}"),
        ({"CollectionConfigurations": [3]}, "CollectionConfigurations[0] must be an object but got 3"),
        ({"CollectionConfigurations": [{}]}, "CollectionConfigurations[0].CollectionName must be text but got None"),
        (
            {"CollectionConfigurations": [{"CollectionName": "mine"}]},
            "CollectionConfigurations[0].CollectionName is invalid: collection 'mine' selects nothing",
        ),
        (
            {"CollectionConfigurations": [{"CollectionName": "weights"}, {"CollectionName": "weights"}]},
            "CollectionConfigurations names weights twice",
        ),
        (
            {"CollectionConfigurations": [{"CollectionName": "weights", "CollectionParameters": {"save_raw": "1"}}]},
            'CollectionConfigurations[0].CollectionParameters.save_raw is unknown (did you mean "save_raw_tensor"?)',
        ),
        (
            {"CollectionConfigurations": [
                {"CollectionName": "weights", "CollectionParameters": {"train.save_steps": "1,x"}}
            ]},
            "CollectionConfigurations[0].CollectionParameters.train.save_steps must be a list of whole numbers",
        ),
        (
            {"HookParameters": {"start_step": 9}, "CollectionConfigurations": [
                {"CollectionName": "weights", "CollectionParameters": {"end_step": 3}}
            ]},
            "CollectionConfigurations weights keeps no step in mode train",
        ),
    ],
)  # fmt: skip
def test_a_bad_hook_configuration_is_named_with_its_own_key(
    write: Callable[[str, Any], Path], content: Any, words: str
) -> None:
    if words == "is not valid JSON":
        content = json.dumps(content)[:-1]
    path = write("hook.json", content)
    with pytest.raises(WatchglassError) as caught:
        SessionConfig.merged("", read_file(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("named", ["deeper/mine.py:Mine", "deeper/mine.py", "../project/deeper/mine.py:Mine"])
def test_a_file_of_actions_is_found_from_the_file_that_names_it(in_tmp_path: Path, named: str) -> None:
    tmp_path = in_tmp_path
    (tmp_path / "project" / "deeper").mkdir(parents=True)
    (tmp_path / "project" / "deeper" / "mine.py").write_text("")
    (tmp_path / "project" / "watchglass.toml").write_text(
        f'[[actions]]\nname = "{named}"\npath = "here.txt"\n[[actions]]\nname = "Webhook"\n'
    )
    own, built_in = read_actions("project/watchglass.toml", named=True)
    assert own.name == f"{tmp_path}/project/{named}"
    assert (own.parameters, built_in.name) == ({"path": "here.txt"}, "Webhook")
    found = find_file(folder=tmp_path / "project" / "deeper", environ={})
    assert found is not None
    assert read_actions(found, named=True)[0] == own


@pytest.mark.parametrize("absolute", [False, True])
def test_a_file_of_actions_that_is_not_there_is_looked_for_beside_the_file(in_tmp_path: Path, absolute: bool) -> None:
    tmp_path = in_tmp_path
    (tmp_path / "project").mkdir()
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "project" / "mines.py").write_text("")
    named = str(tmp_path / "project" / "mine.py") if absolute else "mine.py"
    (tmp_path / "project" / "watchglass.toml").write_text(f'[[actions]]\nname = "{named}:Mine"\n')
    with pytest.raises(MissingFileError) as refused:
        read_actions("project/watchglass.toml", named=True)
    (line,) = str(refused.value).splitlines()
    assert line == (
        f'project/watchglass.toml: there is no action file "{named}" in {tmp_path}/project (did you mean "mines.py"?); '
        "a relative path begins at the folder of watchglass.toml"
    )
