"""``watchglass rules new``: a rule and its test that work, and nothing overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchglass.cli import main
from watchglass.rules import documentation, find_rule


def test_the_rule_and_its_test_are_written(in_tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That the test passes is shown in tests/docs/test_custom_rules_page.py, which starts pytest."""
    assert main(["rules", "new", "SlowStart", "--folder", "mine"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "mine/slow_start.py: the rule SlowStart",
        "mine/test_slow_start.py: its test",
    ]
    documented = documentation(find_rule("mine/slow_start.py:SlowStart"))
    assert set(documented.sections) == {"Looks at", "Fires when", "Usual causes", "What to try"}
    compile(Path("mine/test_slow_start.py").read_text(), "test", "exec")


def test_nothing_is_overwritten(in_tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("test_slow_start.py").write_text("mine")
    assert main(["rules", "new", "SlowStart"]) == 2
    assert "test_slow_start.py exists already; choose another name" in capsys.readouterr().err
    assert Path("test_slow_start.py").read_text() == "mine"
    assert not Path("slow_start.py").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["new", "slow_start"], "must be that of a class, such as SlowStart, but got 'slow_start'"),
        (["new", "../Start"], "must be that of a class"),
        (["new", "None"], "must be that of a class"),
        (["new", "Severity"], "Severity is a name that rules import; choose another name"),
        (
            ["new", "Random"],
            "random.py would hide the module random from scripts in the same folder; choose another name",
        ),
        (["new", "Torch"], "torch.py would hide the module torch from scripts in the same folder; choose another name"),
        (["new", "DeadRelu"], "DeadRelu is a built-in rule; choose another name"),
        (["new"], "to write a new rule: watchglass rules new CLASS"),
        (["DeadRelu", "SlowStart"], "to write a new rule: watchglass rules new CLASS"),
        (["new", "SlowStart", "--coverage"], "to write a new rule: watchglass rules new CLASS"),
        (["--folder", "here"], "to write a new rule: watchglass rules new CLASS"),
        (["new", "SlowStart", "--folder", "file/in"], "cannot make the folder file/in: Not a directory"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    in_tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    Path("file").write_text("")
    assert main(["rules", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("watchglass: error: ")
    assert message in line
    assert sorted(path.name for path in in_tmp_path.iterdir()) == ["file"]
