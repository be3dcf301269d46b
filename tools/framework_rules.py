"""Write docs/frameworks/rules.md, which rules each framework feeds, and why not the others: `make framework-rules`.

python tools/framework_rules.py                  the page, with the columns of all frameworks that are installed
python tools/framework_rules.py --column PyTorch what one framework feeds now, as JSON

A column is what the case of the conformance suite gives the rules. Columns of frameworks that are not installed stay as
they are.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watchglass.capture import FRAMEWORKS
from watchglass.testing import AdapterSuite

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "frameworks" / "rules.md"

_HIDDEN = """
## What cannot be seen

Without a change to the script, this is not seen. Where a run has nothing else, the verdict says so, with the cure.
`step` stands for the name of the function.

"""

#: What a cell says of a rule that is fed, and how it begins for one to which the framework has nothing to say.
FED, MEANINGLESS = "yes", "does not apply: "

_HEAD = """<!-- Written by make framework-rules from what the case of each framework gives the rules. -->
# Rules by framework

Which of the built-in rules get what they need, from the training that the conformance suite runs in each framework.
`yes` is a rule that judges such a run. The verdict of a run names the rules that could not judge it, with the same
reasons. Rules about machines and processes need no framework, and are left out.

"""


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        framework: Its key in the table of frameworks.
        case: Its case, ``"module:Class"``, a module in tests/.
        needs: What must be installed.
        environment: What is set in the environment of its process.
    """

    framework: str
    case: str
    needs: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def installed(self) -> bool:
        """Whether it can be run here."""
        return all(importlib.util.find_spec(each) is not None for each in self.needs)


COLUMNS = {
    "PyTorch": Column("torch", "adapter_cases:PyTorchCase", ("torch", "xgboost")),
    "TensorFlow": Column("tensorflow", "tensorflow_training:TensorFlowCase", ("tensorflow",)),
    "JAX": Column("jax", "conformance.test_jax_adapter:JaxCase", ("jax", "optax"), {"JAX_PLATFORMS": "cpu"}),
    "Keras": Column("keras", "keras_training:KerasCase", ("keras", "tensorflow"), {"KERAS_BACKEND": "tensorflow"}),
    "Keras on PyTorch": Column("keras", "keras_training:KerasCase", ("keras", "torch"), {"KERAS_BACKEND": "torch"}),
    "XGBoost": Column("xgboost", "adapter_cases:XGBoostCase", ("torch", "xgboost")),
}


def cells(name: str) -> dict[str, str]:
    """What a framework gives each rule now, by rule. Trains its case in this process."""
    column = COLUMNS[name]
    sys.path.insert(0, str(ROOT / "tests"))
    home, _, found = column.case.partition(":")

    class Suite(AdapterSuite):
        case = getattr(importlib.import_module(home), found)

    meaningless = FRAMEWORKS[column.framework].meaningless
    with tempfile.TemporaryDirectory() as folder:
        missing = Suite().missing(Path(folder) / "run")
    return {rule: _cell(lacks, meaningless) for rule, lacks in missing.items()}


def _cell(lacks: str, meaningless: Mapping[str, str]) -> str:
    """A cell, from what a rule has not got."""
    if not lacks:
        return FED
    parts = []
    for part in lacks.split("; "):
        what, never, _ = part.partition(" never came")
        kinds = re.sub(r"^the (fact|scalar) | of TRAIN.*", "", what).split(" or ")
        if what.startswith("the fact ") and all(kind in meaningless for kind in kinds):
            return MEANINGLESS + meaningless[kinds[0]]
        if never:
            named = what.startswith(("the fact ", "the scalar "))
            parts.append("no " + (" or ".join(f"`{kind}`" for kind in kinds) if named else what.removeprefix("the ")))
        elif not part.startswith("PyTorch scripts"):  # how to record what never came
            parts.append(part.partition(" (needed")[0])
    return "; ".join(parts)


def column_now(name: str) -> dict[str, str]:
    """The same from a process of its own."""
    program = [sys.executable, __file__, "--column", name]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", **COLUMNS[name].environment}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-4000:]}")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def read(page: str) -> dict[str, dict[str, str]]:
    """The columns of a page, by framework and rule."""
    lines = page.partition(_HIDDEN)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    names = rows[0][1:] if rows else []
    cells = [(re.sub(r"^\[(\w+)\].*", r"\1", row[0]), row[1:]) for row in rows[2:]]
    return {name: {rule: row[at] for rule, row in cells if row[at]} for at, name in enumerate(names)}


def write(columns: Mapping[str, Mapping[str, str]]) -> str:
    """The page with these columns."""
    rules = list(dict.fromkeys(rule for column in columns.values() for rule in column))
    rows = [["rule", *columns], ["---"] * (1 + len(columns))]
    rows += [[f"[{rule}](../rules/{rule}.md)", *(each.get(rule, "") for each in columns.values())] for rule in rules]
    fed = ", ".join(f"{name} {sum(cell == FED for cell in column.values())}" for name, column in columns.items())
    hidden = [["framework", "what is not seen", "what is said of it"], ["---"] * 3]
    names = {column.framework: name for name, column in reversed(COLUMNS.items())}
    for framework, name in reversed(names.items()):
        hidden += [[name, part.where, part.of("step")] for part in FRAMEWORKS[framework].hidden]
    return f"{_HEAD}Fed, of {len(rules)}: {fed}.\n\n{_table(rows)}\n{_HIDDEN}{_table(hidden)}\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Write the page, or print a column."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--column", choices=COLUMNS)
    chosen = parser.parse_args().column
    if chosen:
        print(json.dumps(cells(chosen)))
        return
    before = read(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    columns = {name: column_now(name) if column.installed else before.get(name, {}) for name, column in COLUMNS.items()}
    PAGE.write_text(write(columns), encoding="utf-8")


if __name__ == "__main__":
    main()
