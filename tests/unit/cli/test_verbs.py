"""``show``, ``rules``, ``report``, ``--version``, and how rules are written on a command line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import watchglass as package
from command_line import Watchglass
from watchglass.cli.run import _end_options_at_module
from watchglass.config import RuleSpec
from watchglass.rules import parse_rules, rule_names


def test_show_says_what_is_there(watchglass: Watchglass, broken: Path) -> None:
    said = watchglass("show", broken)
    assert (said.status, said.err) == (0, "")
    for expected in ("train.py", "120 steps", "worker_0", "finished", "gradient/fc.weight", "learning_rate", "NaN"):
        assert expected in said.out
    assert f"not evaluated yet: watchglass check {broken}" in said.out


def test_show_tells_an_unfinished_run(watchglass: Watchglass, killed: Path) -> None:
    said = watchglass("show", killed)
    assert "died without leaving" in said.out
    assert "died without leaving: no account of it" in said.out
    assert "yet" not in said.out.split("Capture")[1].split("Rules")[0]


def test_rules_lists_every_rule_in_a_line(watchglass: Watchglass) -> None:
    said = watchglass("rules")
    assert said.status == 0
    lines = said.out.splitlines()
    assert [line.split()[0] for line in lines[: len(rule_names())]] == rule_names()


@pytest.mark.parametrize("name", rule_names())
def test_each_rule_is_documented(watchglass: Watchglass, name: str) -> None:
    said = watchglass("rules", name)
    assert said.status == 0
    for section in ("Looks at", "Fires when", "Usual causes", "What to try", "Source", "Parameters"):
        assert f"\n{section}\n" in said.out
    assert f"watchglass run --rules {name}" in said.out


def test_parameters_are_listed_with_default_limits_and_unit(watchglass: Watchglass) -> None:
    assert "window  a whole number, default 8, >= 1, in captures" in watchglass("rules", "DeadRelu").out


def test_a_report_is_written_and_not_overwritten(watchglass: Watchglass, broken: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "report.html"
    said = watchglass("report", broken, "-o", target)
    assert (said.status, said.err) == (0, "")
    assert said.out == f"{target} ({target.stat().st_size / 1e6:.1f} MB)\n"
    assert "ExplodingTensor" in target.read_text()
    assert "--force" in watchglass("report", broken, "-o", target).error
    assert watchglass("report", broken, "-o", target, "--force").status == 0


def test_version(watchglass: Watchglass) -> None:
    assert watchglass("--version") == (0, f"watchglass {package.__version__}\n", "")


@pytest.mark.parametrize("verb", ["run", "check", "show", "rules", "report"])
def test_every_verb_has_help(watchglass: Watchglass, verb: str) -> None:
    said = watchglass(verb, "--help")
    assert (said.status, said.err) == (0, "")
    assert f"watchglass {verb}" in said.out


@pytest.mark.parametrize(
    ("texts", "specs"),
    [
        (["DeadRelu"], [("DeadRelu", {})]),
        (["DeadRelu,Overfit", "ExplodingTensor"], [("DeadRelu", {}), ("Overfit", {}), ("ExplodingTensor", {})]),
        (["DeadRelu:window=5,threshold_layer=0.5, Overfit:patience=2"],
         [("DeadRelu", {"window": "5", "threshold_layer": "0.5"}), ("Overfit", {"patience": "2"})]),
        (["my.py:Mine", "sub/my.py:Mine:limit=1e-3,name=a=b"],
         [("my.py:Mine", {}), ("sub/my.py:Mine", {"limit": "1e-3", "name": "a=b"})]),
        (["my.py,my.py:limit=3"], [("my.py", {}), ("my.py", {"limit": "3"})]),
        ([r"C:\rules\my.py:Mine:x=1"], [(r"C:\rules\my.py:Mine", {"x": "1"})]),
    ],
)  # fmt: skip
def test_rules_as_written_on_a_command_line(texts: list[str], specs: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_rules(texts) == tuple(RuleSpec(name, dict(parameters)) for name, parameters in specs)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py", "-m", "x"], ["train.py", "-m", "x"]),
        (["--quiet", "-m", "pkg", "--run", "x"], ["--quiet", "-m", "pkg", "--", "--run", "x"]),
        (["--run", "-m", "-m", "pkg", "-m"], ["--run", "-m", "-m", "pkg", "--", "-m"]),
        (["--run=d", "-mpkg", "a"], ["--run=d", "-m", "pkg", "--", "a"]),
        (["--", "-m"], ["--", "-m"]),
        (["-m"], ["-m", "--"]),
        ([], []),
    ],
)
def test_options_end_at_the_module(words: list[str], expected: list[str]) -> None:
    assert _end_options_at_module(words, {"--run"}) == expected


def test_the_example_of_a_rule_of_ones_own_can_be_typed(watchglass: Watchglass, tmp_path: Path) -> None:
    file = tmp_path / "my rules.py"
    file.write_text(
        "from watchglass import Rule\n\n\nclass Mine(Rule):\n    factor: float = 2.0\n\n"
        "    def check(self, view):\n        return ()\n"
    )
    example = watchglass("rules", f"{file}:Mine").out.splitlines()[-1]
    assert shlex.split(example) == ["watchglass", "run", "--rules", f"{file}:Mine:factor=2.0", "train.py"]


def test_a_misspelt_set_has_its_near_name(watchglass: Watchglass) -> None:
    assert 'there is no rule "visoin" (did you mean "vision"?)' in watchglass("rules", "visoin").error
