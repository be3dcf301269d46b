"""What the command line says of capture, on top of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command_line import Watchglass
from watchglass.cli.capture_options import given_settings, parse_collections, parse_percent
from watchglass.config import Collection, ModeSteps, SessionConfig
from watchglass.launch import Job


@pytest.mark.parametrize(
    ("texts", "table"),
    [
        (["inputs"], {"inputs": {}}),
        (["first=^conv1"], {"first": {"include_regex": ("^conv1",)}}),
        (["first=a:b=c,d", "first=x{1,2}"], {"first": {"include_regex": ("a:b=c,d", "x{1,2}")}}),
        (["weights:save_interval=5, save_raw=true"], {"weights": {"save_interval": "5", "save_raw": "true"}}),
        (["weights:reductions=median,prod,end_step=9"], {"weights": {"reductions": "median,prod", "end_step": "9"}}),
        (
            ["outputs:modes.eval.save_steps=1,2,modes.eval.end_step=0"],
            {"outputs": {"modes": {"eval": {"save_steps": "1,2", "end_step": "0"}}}},
        ),
        (
            ["outputs:modes.eval.save_interval=1,save_raw=true", "outputs:modes.predict.save_steps=0,save_raw=false"],
            {
                "outputs": {
                    "modes": {"eval": {"save_interval": "1"}, "predict": {"save_steps": "0"}},
                    "save_raw": "false",
                }
            },
        ),
        (["mine:include_regex=a{1,2},save_raw=true"], {"mine": {"include_regex": "a{1,2}", "save_raw": "true"}}),
    ],
)
def test_collections_as_written_on_a_command_line(texts: list[str], table: dict[str, Any]) -> None:
    assert parse_collections(texts) == table


def test_percentages() -> None:
    assert [parse_percent(text) for text in ("1", "0.5 ", "2%", "100")] == [0.01, 0.005, 0.02, 1.0]


def test_only_what_is_given_is_set() -> None:
    nothing = {"collections": None, "save_raw": None, "overhead_budget": None, "save_all": False, "save_interval": None}
    assert given_settings(**nothing) == {}
    assert given_settings(**{**nothing, "save_raw": ["weights, outputs"], "save_all": True}) == {
        "save_all": True,
        "collections": {"weights": {"save_raw": True}, "outputs": {"save_raw": True}},
    }


def test_traces_that_no_window_will_have_are_stated_once(watchglass: Watchglass, jobs: list[Job]) -> None:
    begun = "watchglass: run directory runs/x\n"
    missing = (
        "watchglass: no trace is kept yet: --profile-steps is missing; to profile steps: watchglass profile runs/x\n"
    )
    assert watchglass("run", "--keep-traces", "train.py").err == begun + missing
    assert watchglass("run", "--keep-traces", "--python-profile", "5:7", "train.py").err == begun + missing
    assert watchglass("run", "--keep-traces", "--profile-steps", "5:7", "train.py").err == begun
    assert watchglass("run", "--quiet", "--keep-traces", "train.py").err == ""
    assert jobs[0].capture.profiler.keep_traces


def test_the_command_line_comes_before_the_file(watchglass: Watchglass, jobs: list[Job], tmp_path: Path) -> None:
    (tmp_path / "watchglass.toml").write_text(
        "save_interval = 3\noverhead_budget = 0.5\n[collections.gradients]\nsave_interval = 4\n"
    )
    said = watchglass(
        "run", "--save-interval", "7", "--collection", "gradients:end_step=9", "--save-raw", "weights",
        "--include-workers", "one", "train.py",
    )  # fmt: skip
    assert said.status == 0
    assert said.err == f"watchglass: run directory runs/x, settings from {tmp_path / 'watchglass.toml'}\n"
    config = jobs[0].session("runs/x", 0)
    assert (config.save_interval, config.overhead_budget, config.include_workers) == (7, 0.5, "one")
    assert Collection("gradients", save_interval=4, end_step=9) in config.collections
    assert Collection("weights", save_raw=True) in config.collections
    assert [collection.name for collection in config.collections][:3] == ["weights", "biases", "gradients"]
    assert config.overrides["save_interval"] == "7"
    assert SessionConfig.from_env(config.to_env()) is not None


def test_the_command_line_changes_a_collection_that_the_file_defines(
    watchglass: Watchglass, jobs: list[Job], tmp_path: Path
) -> None:
    (tmp_path / "watchglass.toml").write_text('[collections.first_layer]\nmodules = ["0"]\nmodes.eval.end_step = 9\n')
    words = ["--save-raw", "first_layer", "--collection", "first_layer:modes.eval.save_interval=5", "train.py"]
    assert watchglass("run", *words).status == 0
    (found,) = (c for c in jobs[0].session("runs/x", 0).collections if c.name == "first_layer")
    steps = ModeSteps(save_interval=5, end_step=9)
    assert found == Collection("first_layer", modules=("0",), save_raw=True, modes={"eval": steps})
    error = watchglass("run", "--collection", "first_layer:save_interval=0", "train.py").error
    assert error == "--collection first_layer.save_interval must be >= 1 but got '0'"
    error = watchglass("run", "--collection", "first_layer:include_regex=(", "train.py").error
    assert error.startswith("--collection first_layer.include_regex '(' does not compile")


def test_a_hook_configuration_is_found_through_the_environment(
    watchglass: Watchglass, jobs: list[Job], tmp_path: Path
) -> None:
    (tmp_path / "hook.json").write_text('{"CollectionConfigurations": [{"CollectionName": "gradients"}]}')
    said = watchglass("run", "train.py", env={"SMDEBUG_CONFIG_FILE_PATH": "hook.json"})
    assert "settings from hook.json" in said.err
    config = jobs[0].session("runs/x", 0)
    assert (config.save_interval, config.collections) == (500, (Collection("gradients"),))
    said = watchglass("run", "train.py", env={"SMDEBUG_CONFIG_FILE_PATH": "nowhere.json"})
    assert "nowhere.json of SMDEBUG_CONFIG_FILE_PATH does not exist" in said.error
