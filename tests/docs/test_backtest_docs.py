"""docs/cli.md shows what ``watchglass backtest`` prints, and labels in three forms that say the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from evaluators.backtested import make_runs
from watchglass.cli import main
from watchglass.evaluate import read_labels

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
SECTION = TEXT[TEXT.index("## backtest\n") : TEXT.index("## report\n")]
(LABELS,) = re.findall(r"```csv\n(.*?)```", SECTION, re.DOTALL)
EXAMPLES = re.findall(r"```console\n\$ watchglass (.*?)\n(.*?)```", SECTION, re.DOTALL)


@pytest.fixture
def runs(in_tmp_path: Path) -> Path:
    make_runs(in_tmp_path / "runs")
    (in_tmp_path / "labels.csv").write_text(LABELS)
    return in_tmp_path


def test_the_examples_print_what_is_shown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == 2
    for command, shown in EXAMPLES:
        assert main(command.split()) == 0
        assert capsys.readouterr() == (shown, "")


def test_labels_in_json_and_toml_say_the_same(in_tmp_path: Path) -> None:
    (in_tmp_path / "labels.csv").write_text(LABELS)
    labels = read_labels("labels.csv")
    rows = [
        {name: value for name, value in vars(label).items() if value is not None and value != ""} for label in labels
    ]
    (in_tmp_path / "list.json").write_text(json.dumps(rows))
    (in_tmp_path / "runs.json").write_text(json.dumps({"runs": rows}))
    tables = ("".join(f"{name} = {json.dumps(value)}\n" for name, value in row.items()) for row in rows)
    (in_tmp_path / "labels.toml").write_text("".join(f"[[runs]]\n{table}" for table in tables))
    for form in ("list.json", "runs.json", "labels.toml"):
        assert read_labels(form) == labels
