"""The commands that answer questions answer programs, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import Watchglass
from watchglass.run import open_run
from watchglass.testing import Step, build_run


def answer(watchglass: Watchglass, *words: str | Path) -> Any:
    said = watchglass(*words)
    assert said.status in (0, 1), said.err
    return json.loads(said.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_show_has_the_content_of_a_run(watchglass: Watchglass, tmp_path: Path) -> None:
    made = [Step({"loss": value}, statistics={"fc1.weight": [1.0, 2.0]}) for value in (2.0, float("nan"))]
    build_run(
        tmp_path / "run", made, modules={"fc1": "Linear"}, facts={"optimizer": {"type": "SGD", "groups": [{"lr": 1}]}}
    )
    found = answer(watchglass, "show", tmp_path / "run", "--json")
    assert (found["state"], found["steps"], found["workers"]) == ("finished", {"TRAIN": 2}, ["worker_0"])
    assert found["scalars"] == [
        {"name": "loss", "mode": "TRAIN", "count": 2, "first": 2.0, "last": "NaN", "last_step": 1}
    ]
    (tensor,) = found["tensors"]
    assert (tensor["name"], tensor["role"], tensor["shape"]) == ("fc1.weight", "weight", [2])
    assert found["settings"]["lr"] == "1"


def test_show_has_the_runs_of_a_folder(watchglass: Watchglass, tmp_path: Path) -> None:
    for name in ("a", "b"):
        build_run(tmp_path / name, [Step({"loss": 1.0})])
    found = answer(watchglass, "show", tmp_path, "--json")
    assert (found["count"], [each["name"] for each in found["runs"]]) == (2, ["a", "b"])
    assert found["runs"][0]["train_steps"] == len(open_run(tmp_path / "a").steps())


def test_rules_are_listed_and_documented(watchglass: Watchglass) -> None:
    every = answer(watchglass, "rules", "--json")
    assert {"name": "DeadRelu", "summary": answer(watchglass, "rules", "DeadRelu", "--json")["summary"]} in every[
        "rules"
    ]
    names = next(each["rules"] for each in every["sets"] if each["name"] == "llm")
    assert [each["name"] for each in answer(watchglass, "rules", "llm", "--format", "json")["rules"]] == names


@pytest.mark.parametrize("words", [("check",), ("explain",), ("backtest", "DeadRelu")])
def test_json_is_short_for_the_format(watchglass: Watchglass, healthy: Path, words: tuple[str, ...]) -> None:
    short, long = watchglass(*words, healthy, "--json"), watchglass(*words, healthy, "--format", "json")
    assert json.loads(short.out).keys() == json.loads(long.out).keys()
    assert watchglass(*words, healthy, "--format", "text", "--json").status in (0, 1)


def test_two_formats_are_refused(watchglass: Watchglass, healthy: Path) -> None:
    error = watchglass("check", healthy, "--json", "--format", "markdown").error
    assert error == "use either --json or --format markdown, not both"
