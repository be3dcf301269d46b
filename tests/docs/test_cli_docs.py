"""docs/cli.md says what the command line does: every verb and option, and the outputs that do not depend on a run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import typer.main
from torch.distributed.run import get_args_parser

from watchglass.cli import main
from watchglass.cli.app import application
from watchglass.config import environment
from watchglass.records import FORMAT_VERSION

COMMANDS = typer.main.get_command(application()).commands  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def text(repository: Path) -> str:
    return (repository / "docs" / "cli.md").read_text()


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_and_option_is_described(text: str, verb: str) -> None:
    section = re.split(r"^## ", text, flags=re.MULTILINE)
    (own,) = [part for part in section if part.startswith(verb + "\n")]
    shared = {"--help", "--debug", "-h"} | ({"--rules"} if verb == "check" else set())
    for parameter in COMMANDS[verb].params:
        for option in parameter.opts:
            if option.startswith("--") and option not in shared | {"--output"}:
                assert option in own, f"{option} of {verb} is not described"


@pytest.mark.parametrize("command", ["rules", "actions", "rules Overfit", "run --rules DeadRelo train.py"])
def test_printed_outputs_are_the_real_ones(
    text: str, command: str, capsys: pytest.CaptureFixture[str], in_tmp_path: Path
) -> None:
    (in_tmp_path / "train.py").write_text("")
    (shown,) = re.findall(rf"^\$ watchglass {re.escape(command)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with patch.dict(os.environ):
        os.environ.pop("COLUMNS", None)
        main(command.split())
    printed = "".join(capsys.readouterr())
    assert [line.rstrip() for line in printed.splitlines()] == shown.splitlines()


def test_torchrun_leaves_every_option_but_one_to_watchglass(capsys: pytest.CaptureFixture[str]) -> None:
    """Before Python 3.12 its parser looks for abbreviations of its options behind the script, too."""
    parser = get_args_parser()
    for option in (each for parameter in COMMANDS["run"].params for each in parameter.opts):
        words = ["run", option, "value", "train.py"]
        if option == "--run" and sys.version_info < (3, 12):
            with pytest.raises(SystemExit):
                parser.parse_args(["-m", "watchglass", *words])
            assert "ambiguous option: --run could match --run-path, --run_path" in capsys.readouterr().err
        elif option.startswith("--"):
            assert parser.parse_args(["-m", "watchglass", *words]).training_script_args == words


@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md", "docs/cli.md"])
def test_what_is_shown_for_torchrun_names_the_run_as_torchrun_accepts_it(repository: Path, page: str) -> None:
    shown = re.findall(r"torchrun ([^`#\n]*-m watchglass run [^`#\n]*)", (repository / page).read_text())
    assert shown
    for line in shown:
        words = line.replace("[", "").replace("]", "").split()
        given = get_args_parser().parse_args(words)
        assert (given.training_script, given.training_script_args[:2]) == ("watchglass", ["run", "--run-dir"])


def test_every_environment_variable_is_described(text: str) -> None:
    table = text[text.index("## Environment variables") :]
    names = {value for name, value in vars(environment).items() if name.isupper() and isinstance(value, str)}
    assert {"WATCHGLASS", "SMDEBUG_CONFIG_FILE_PATH"} < names
    assert [name for name in sorted(names) if not re.search(rf"^\| `{name}[=`]", table, re.MULTILINE)] == []


def test_the_run_that_is_shown_has_the_format_of_today(text: str) -> None:
    assert "\nformat    {}.{}, written by".format(*FORMAT_VERSION) in text
