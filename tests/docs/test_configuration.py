"""docs/configuration.md is true: its examples run and agree, its tables are those of the code."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from watchglass.cli import main
from watchglass.cli.capture_options import given_settings
from watchglass.config import (
    BUILT_IN_COLLECTIONS,
    DEFAULT_COLLECTIONS,
    EXACT_REDUCTIONS,
    SETTINGS,
    Collection,
    ProfilerConfig,
    SessionConfig,
    combine,
    read_file,
)
from watchglass.records import Role

TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return str(found)


def first_column(text: str) -> list[str]:
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_examples_run_and_say_the_same_thing_in_three_ways(in_tmp_path: Path) -> None:
    (in_tmp_path / "page.py").write_text("\n".join(blocks("python")))
    code = SessionConfig("run", **combine(runpy.run_path("page.py")["settings"]))

    same, modes, profiler = blocks("toml")
    (in_tmp_path / "watchglass.toml").write_text(same)
    assert SessionConfig("run", **combine(read_file("watchglass.toml"))) == code

    (line,) = re.findall(r"\$ watchglass run (--save-interval.*) train\.py", TEXT)
    words = shlex.split(line)
    options = [(words[n], words[n + 1]) for n in range(0, len(words), 2)]
    given = given_settings(
        collections=[value for name, value in options if name == "--collection"],
        save_raw=None,
        overhead_budget=None,
        save_interval=dict(options)["--save-interval"],
    )
    said = SessionConfig("run", **combine(given))
    off = Collection("updates", end_step=0)
    assert said.save_interval == code.save_interval
    assert set(said.collections) - {off} == set(code.collections)
    assert off in said.collections

    (in_tmp_path / "modes.toml").write_text(modes)
    outputs = next(c for c in combine(read_file("modes.toml"))["collections"] if c.name == "outputs")
    schedule = SessionConfig("run").schedule(outputs, "predict")
    assert schedule is not None
    assert [step for step in range(201) if schedule.holds(step, False)] == [0, 100, 200]

    (in_tmp_path / "profiler.toml").write_text(profiler)
    read = SessionConfig("run", **combine(read_file("profiler.toml"))).profiler
    assert (read.sample_interval_s, len(read.operator_windows)) == (1, 2)


def test_the_readme_says_what_works(in_tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    (in_tmp_path / "watchglass.toml").write_text(toml)
    named = {collection.name: collection for collection in combine(read_file("watchglass.toml"))["collections"]}
    assert named.keys() == {c.name for c in DEFAULT_COLLECTIONS} - {"updates"} | {
        "optimizer_variables", "attention_outputs",
    }  # fmt: skip
    assert named["attention_outputs"].selects("x", Role.OUTPUT, "encoder.layers.3.self_attn", "MultiheadAttention")
    (line,) = re.findall(r"\$ watchglass run (--save-raw .*) train\.py", readme)
    words = shlex.split(line)
    given = given_settings(
        collections=[words[n + 1] for n in range(0, len(words), 2) if words[n] == "--collection"],
        save_raw=[words[1]],
        overhead_budget=None,
    )
    assert set(given["collections"]) == {"weights", "gradients", "first"}


def test_the_hook_configuration_is_read(in_tmp_path: Path) -> None:
    (text,) = blocks("json")
    (in_tmp_path / "hook.json").write_text(text)
    config = SessionConfig("run", **combine(read_file("hook.json")))
    assert [collection.name for collection in config.collections] == ["gradients", "relu"]
    assert (config.save_interval, config.save_raw) == (100, False)


def test_options_of_the_table_mean_what_it_says(in_tmp_path: Path) -> None:
    rows = re.findall(r"^\| `--collection (.*?)` \| `(.*?)` \|$", TEXT, re.MULTILINE)
    assert len(rows) == 4
    for option, toml in rows:
        (in_tmp_path / "x.toml").write_text(toml)
        given = given_settings(collections=[option], save_raw=None, overhead_budget=None)
        assert combine(given) == combine(read_file("x.toml")), option


def test_the_built_in_collections_are_all_listed() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) ?\|$", section("Which tensors"), re.MULTILINE)
    assert [(name, holds) for name, holds, _ in rows] == [(n, b.holds) for n, b in BUILT_IN_COLLECTIONS.items()]
    remarks = {name: remark for name, _, remark in rows}
    defaults = {collection.name for collection in DEFAULT_COLLECTIONS}
    assert {name for name, remark in remarks.items() if remark == "by default"} == defaults
    every = {name for name, built_in in BUILT_IN_COLLECTIONS.items() if built_in.every_step}
    assert {name for name, remark in remarks.items() if remark.startswith("every step")} == every


def test_the_settings_are_all_listed() -> None:
    assert sorted(first_column(section("All settings"))) == sorted(SETTINGS)
    assert first_column(section("Profiler")) == list(ProfilerConfig.__dataclass_fields__)
    selectors = first_column(section("Which tensors"))[len(BUILT_IN_COLLECTIONS) :]
    steps = first_column(section("At which steps"))
    kept = first_column(section("What is kept of a tensor"))
    assert sorted(["name", *selectors, *steps, *kept]) == sorted(Collection.__dataclass_fields__)
    assert all(f"`{role.value}`" in section("Which tensors") for role in Role)
    assert all(f"`{name}`" in section("What is kept of a tensor") for name in EXACT_REDUCTIONS)


def test_errors_are_the_real_ones(capsys: pytest.CaptureFixture[str], in_tmp_path: Path) -> None:
    (in_tmp_path / "train.py").write_text("")
    (in_tmp_path / "mistaken.toml").write_text("[collections.gradients]\nsave_intervall = 3")
    shown = re.findall(r"^\$ watchglass (.*)\n(watchglass: error: .*)$", TEXT, re.MULTILINE)
    assert len(shown) == 3
    for command, error in shown:
        assert main(shlex.split(command)) == 2
        assert capsys.readouterr().err == error + "\n"
