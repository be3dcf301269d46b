"""A sick run of each rule and its healthy twin, as its tests have them: for the figures of its page, and for people."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from real_runs import RealRuns, suites
from watchglass.config import RuleSpec
from watchglass.errors import UnknownNameError
from watchglass.rules import capture_for
from watchglass.testing.rule_suite import RuleSuite

TESTS = Path(__file__).parent / "unit" / "rules"


class ExampleRun(NamedTuple):
    """A run that was made.

    Attributes:
        path: Where it is.
        rule: The rule with the parameters with which it fires on the sick run.
        trained: Whether a model was trained; else the run is made of numbers.
    """

    path: Path
    rule: RuleSpec
    trained: bool


def example_run(rule: str, folder: Path, *, sick: bool) -> ExampleRun:
    """Make the sick run of a built-in rule, or its healthy twin.

    The run of its ``RealRuns`` is trained in this process. A rule without one has a run of its ``RuleSuite``, which is
    made of numbers.

    Args:
        rule: Name of the rule.
        folder: Where the run is written: a folder that does not exist.
        sick: Whether it is the sick run.

    Raises:
        UnknownNameError: No test of a rule has this name.
    """
    for suite in suites():
        if suite.rule == rule:
            return _trained(suite.load()(), rule, folder, sick)
    numbers = _suites_of_numbers().get(rule)
    if numbers is None:
        raise UnknownNameError(f'no test has an example for a rule "{rule}"; watchglass rules lists the rules')
    file, name = numbers
    return _of_numbers(_load(file, name)(), rule, folder, sick)


def _trained(suite: RealRuns, rule: str, folder: Path, sick: bool) -> ExampleRun:
    specs = suite.rules()
    suite.record(folder, {**capture_for(specs), "save_interval": 1}, sick=sick)
    return ExampleRun(folder, next(spec for spec in specs if spec.name == rule), True)


def _of_numbers(suite: RuleSuite, rule: str, folder: Path, sick: bool) -> ExampleRun:
    steps: Sequence[Any] = suite.sick() if sick else suite.healthy()
    return ExampleRun(suite.build(folder, steps), RuleSpec(rule, dict(suite.parameters)), False)


@functools.cache
def _suites_of_numbers() -> dict[str, tuple[Path, str]]:
    """File and class of the first ``RuleSuite`` of each built-in rule, found in the text of the tests."""
    found: dict[str, tuple[Path, str]] = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef) or not any(ast.unparse(base) == "RuleSuite" for base in node.bases):
                continue
            for each in node.body:
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "rule":
                    found.setdefault(_named(each.value, file), (file, node.name))
    return found


def _named(value: ast.expr, file: Path) -> str:
    """The name in ``rule = find_rule("NAME")``, where it may be a constant of the file."""
    if isinstance(value, ast.Call) and len(value.args) == 1:
        argument = value.args[0]
        if isinstance(argument, ast.Constant):
            return str(argument.value)
        return str(getattr(_module(file), ast.unparse(argument)))
    return ast.unparse(value)


def _load(file: Path, name: str) -> type[RuleSuite]:
    loaded: type[RuleSuite] = getattr(_module(file), name)
    return loaded


@functools.cache
def _module(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
