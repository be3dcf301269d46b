"""``watchglass rules new``: the file of a custom rule to start from, and its test."""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import PathFinder
from keyword import iskeyword
from pathlib import Path
from string import Template

from watchglass.errors import InvalidValueError
from watchglass.view import check_output_path, write_whole

_RULE = Template('''\
"""$name: the loss is far above its start."""

from watchglass import Mode, Needs, Rule, Severity
from watchglass.rules import parameter, state


class $name(Rule):
    """The training loss is far above its start.

    Looks at: the training loss at every step.
    Fires when: it is above `times` times its first value in `patience` steps in a row.
    Usual causes: a learning rate that is too high.
    What to try: a tenth of the learning rate.
    """

    #: What it reads. Capture records this; a rule whose data never arrives is Starved.
    needs = (Needs(scalars=("loss",), why="to follow the training loss"),)

    #: Parameters: watchglass run --rules $file:$name:times=3,patience=5 train.py
    times: float = parameter(2.0, help="loss over that of the first step", unit="ratio", gt=1)
    patience: int = parameter(3, help="steps in a row", unit="steps", ge=1)

    #: What it remembers from step to step: plain JSON, for the evaluator may restart.
    first: float | None = state(lambda: None)
    above: int = state(int)

    def check(self, view):
        """Called for every complete step."""
        loss = view.scalar("loss")
        if view.mode is not Mode.TRAIN or loss is None:
            return
        if self.first is None:
            self.first = loss
        self.above = self.above + 1 if loss > self.times * self.first else 0
        if self.above >= self.patience:
            yield self.finding(
                view,
                severity=Severity.WARNING,
                tensors=["loss"],
                value=loss,
                limit=self.times * self.first,
                message=f"the loss is {loss:.3g} at step {view.mode_step}, and was {self.first:.3g} at the first one",
                causes=["learning_rate_too_high"],
            )
''')
_TEST = Template('''\
"""Tests of $name: a sick run on which it must fire, and a healthy twin."""

from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

from $module import $name


class Test$name(RuleSuite):
    rule = $name

    def sick(self):
        return [Step(scalars={"loss": 1.5**n}) for n in range(20)]

    def healthy(self):
        return [Step(scalars={"loss": 0.9**n}) for n in range(20)]
''')


#: Names that the templates import, which a class of the same name would hide.
_TAKEN = ("Mode", "Needs", "Rule", "RuleSuite", "Severity", "Step")


def write_new_rule(name: str, folder: Path) -> tuple[Path, Path]:
    """Write a rule that works and its test, for the user to change.

    Args:
        name: Name of its class, such as ``"SlowStart"``.
        folder: Where both files go; it is made if it does not exist.

    Returns:
        The file of the rule, and that of its test.

    Raises:
        InvalidValueError: The name is no name of a new class, its file would hide a module, or a file exists already.
        StoreError: A file cannot be written.
    """
    module = _module_of(name)
    texts = {folder / f"{module}.py": _RULE, folder / f"test_{module}.py": _TEST}
    # Both are checked before one is written.
    for path in texts:
        if os.path.lexists(path):
            raise InvalidValueError(f"{path} exists already; choose another name, or another folder with --folder")
        check_output_path(path)
    for path, text in texts.items():
        content = text.substitute(name=name, module=module, file=f"{module}.py")
        write_whole(path, content.encode(), option="--folder")
    rule, test = texts
    return rule, test


def _module_of(name: str) -> str:
    """The name of the file of a new rule, without its ending."""
    from watchglass.rules import BUILT_IN, RULE_SETS

    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name) or iskeyword(name):
        raise InvalidValueError(
            f"the name of a new rule must be that of a class, such as SlowStart, but got {name!r:.80}"
        )
    if name in BUILT_IN or name in RULE_SETS:
        raise InvalidValueError(f"{name} is a built-in rule; choose another name")
    if name in _TAKEN:
        raise InvalidValueError(f"{name} is a name that rules import; choose another name")
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    if module in sys.stdlib_module_names or _is_installed(module):
        raise InvalidValueError(
            f"{module}.py would hide the module {module} from scripts in the same folder; choose another name"
        )
    return module


def _is_installed(module: str) -> bool:
    """Whether scripts can import a module of this name, from elsewhere than the current folder."""
    here = ("", os.getcwd())
    return PathFinder.find_spec(module, [path for path in sys.path if path not in here]) is not None
