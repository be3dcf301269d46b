"""docs/actions.md: its code runs, its command lines are right, its tables are those of the code."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from evaluators.receivers import receiver
from watchglass.actions import Action, checked_actions, parse_action
from watchglass.actions.templates import FIELDS
from watchglass.cli import main
from watchglass.config import ActionSpec, describe, read_actions
from watchglass.rules import rule_names
from watchglass.store import LocalStore, layout
from watchglass.testing import build_run, delivered, example_event


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "actions.md").read_text()


def blocks(page: str, kind: str) -> list[str]:
    found = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, of, text in found if of == kind]


@pytest.fixture
def environment() -> Iterator[None]:
    names = ("MAIL_URL", "SLACK_URL", "HOOK_SECRET", "MAIL_PASSWORD", "SLURM_JOB_ID", "JOB_NAME", "TOKEN")
    with patch.dict(os.environ, dict.fromkeys(names, "something")):
        yield


def test_every_action_on_a_command_line_is_right(page: str, environment: None, in_tmp_path: Path) -> None:
    commands = [line for text in blocks(page, "") for line in text.splitlines() if line.startswith("watchglass ")]
    assert len(commands) >= 7
    named = []
    for line in commands:
        words = shlex.split(line)
        specs = [parse_action(words[place + 1]) for place, word in enumerate(words) if word == "--action"]
        named += [spec.name for spec in checked_actions(specs, rule_names(), thorough=False)]
    assert set(named) == {"StopTraining", "Notify", "Command", "ProfileSteps"}
    checked_actions([parse_action("Webhook:url=https://example.org:8443/a?b=c,severity=error")], [])


def test_the_file_is_right(page: str, environment: None, in_tmp_path: Path) -> None:
    (text,) = blocks(page, "toml")
    (in_tmp_path / "watchglass.toml").write_text(text)
    notify, webhook = checked_actions(read_actions(in_tmp_path / "watchglass.toml", named=True), [], thorough=False)
    assert (notify.name, webhook.name) == ("Notify", "Webhook")


def test_the_error_is_the_real_one(page: str, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = blocks(page, "console")
    command, shown = text.removeprefix("$ watchglass ").split("\n", 1)
    (in_tmp_path / "train.py").write_text("")
    assert main(shlex.split(command)) == 2
    assert capsys.readouterr().err == shown


def test_the_tables_are_those_of_the_code(page: str) -> None:
    places = dict(re.findall(r"^\| `\{(\w+)\}` \| (.*) \|$", page, re.MULTILINE))
    assert tuple(places) == FIELDS
    assert all(places.values())
    section = page[page.index("## What every action has") : page.index("## Guarantees")]
    rows = dict(re.findall(r"^\| `(\w+)` \| *`?([^|`]*?)`? *\|", section, re.MULTILINE))
    infos = {info.name: info.default for info in describe(Action)}
    assert set(rows) == set(infos)
    for name in ("timeout_s", "retries", "per_hour"):
        assert float(rows[name]) == infos[name]
    assert rows["severity"] == infos["severity"].value
    assert (rows["on"],) == infos["on"]


@pytest.mark.parametrize(("name", "header"), [("Notify", "## Notify"), ("Webhook", "## Webhook")])
def test_the_parameters_of_each_are_described(page: str, name: str, header: str) -> None:
    from watchglass.actions import find_action

    section = page[page.index(header) :]
    section = section[: section.index("\n## ")]
    common = {info.name for info in describe(Action)}
    for info in describe(find_action(name)):
        assert info.name in common or f"`{info.name}`" in section


def test_the_code_runs(page: str, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, verify, mine, tried = blocks(page, "python")
    (in_tmp_path / "my_actions.py").write_text(mine)
    exec(compile(tried, "page", "exec"), {})  # noqa: S102  the page's own code
    assert (in_tmp_path / "findings.txt").read_text() == "ExplodingTensor: the loss became NaN at step 7\n"

    build_run("runs/mine")
    store = LocalStore(in_tmp_path / "runs" / "mine")
    event = {**example_event().to_json(), "id": "0123456789abcdef"}
    letter = {"action": "AppendToFile", "event": event, "tries": 4, "reason": "no room"}
    store.write(layout.dead_letter("AppendToFile", event["id"]), json.dumps(letter).encode())
    command, shown = blocks(page, "console")[-1].removeprefix("$ watchglass ").split("\n", 1)
    capsys.readouterr()
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown
    assert (in_tmp_path / "findings.txt").read_text().count("\n") == 2
    assert store.list(layout.DEAD_LETTERS) == []
    exec(compile(journal, "page", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == "action_done AppendToFile ExplodingTensor \n"

    module: Any = types.ModuleType("page")
    exec(compile(verify, "page", "exec"), vars(module))  # noqa: S102
    with receiver() as server:
        spec = ActionSpec("Webhook", {"url": server.url, "secret": "geheim"})
        assert delivered(spec, example_event()).done
    (request,) = server.requests
    assert module.verified(request.headers, request.body, b"geheim")
    assert not module.verified(request.headers, request.body + b" ", b"geheim")
    assert not module.verified(request.headers, request.body, b"another")
    old = {**request.headers, "webhook-timestamp": "1600000000"}
    assert not module.verified(old, request.body, b"geheim")
    assert "page" not in sys.modules


def test_an_action_of_ones_own_is_documented_by_the_command(
    page: str, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp_path / "my_actions.py").write_text(blocks(page, "python")[2])
    assert main(["actions", "my_actions.py:AppendToFile"]) == 0
    out = capsys.readouterr().out
    assert "Writes a line per event." in out
    assert "watchglass run --action 'my_actions.py:AppendToFile' train.py" in out
    assert main(["actions"]) == 0
    assert "Notify" in capsys.readouterr().out
