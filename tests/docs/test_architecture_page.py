"""docs/architecture.md draws the layers of the import contract, and names the files that a new member touches.

A test adds a toy of each kind by these files alone. If another file listed members too, the toy would be missing there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest


class Toy(NamedTuple):
    """A new member.

    Attributes:
        edits: By file below ``src/watchglass``, a text that is there once and what takes its place; "" in a new file.
        check: Python that is run with the changed package in an empty folder, and raises where the toy is missing.
    """

    edits: dict[str, list[tuple[str, str]]]
    check: str


PREAMBLE = """
import contextlib, io, os, signal, subprocess, sys
import watchglass
from watchglass.cli.app import main
from watchglass.record import harvest
from watchglass.store import LocalStore
from watchglass.testing import RunBuilder, Step, build_run

sys.path.insert(0, ".")

def cli(*arguments, status=0):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(arguments) == status, (arguments, output.getvalue())
    return output.getvalue()
"""

RULE = '''
from watchglass.config import parameter
from watchglass.records import Severity
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule

class TooHigh(Rule):
    """The loss is above a limit."""

    needs = (Needs(scalars=("loss",)),)
    limit: float = parameter(10.0, help="highest loss that is fine", gt=0)

    def check(self, view):
        loss = view.scalar("loss")
        if loss > self.limit:
            yield self.finding(view, severity=Severity.ERROR, message="too high", value=loss, symptoms=("too_high",))
'''
ADAPTER = """
import toy_framework
from watchglass.capture.loops import Loop
from watchglass.records import Mode, Role

class ToyLoop(Loop):
    name = "toy_framework"

    def is_loop(self, value):
        return isinstance(value, toy_framework.Model)

    def attach(self, port, watched=None):
        def updated(loss):
            step = port.begin(Mode.TRAIN)
            port.add_scalar(step.records, "loss", loss, Role.LOSS)
            port.end(step)
        watched.updated = port.guarded(updated)
        port.detach_with(lambda: delattr(watched, "updated"))
"""
ACTION = '''
from watchglass.actions.action import Action
from watchglass.config import parameter

class Shout(Action):
    """Writes into a file."""

    path: str = parameter("", help="the file")

    def act(self, event):
        open(self.path, "a").write(event.rule)
'''
FORMAT = """
def toy_document(judged):
    return "".join(f"toy of {verdict.run}" for verdict in judged.verdicts)
"""
STORE = """
from watchglass.store.media.local import LocalStore

class ToyStore(LocalStore):
    def __init__(self, location):
        super().__init__(location.partition("://")[2])
        self.location = location
"""
FIGURE = """
def toy_figure(run):
    return Lines("Toy", Axis("step"), Axis(), (line_of("toy", (np.arange(2), np.array([1.0, 0.0])), "#000000"),))


"""
OPENED = """
    scheme = scheme_of(location)
    if scheme == "toy":
        from watchglass.store.media.NAME import ToyStore

        return ToyStore(location)
"""

KILLED = """
import os, signal, time, watchglass
from watchglass.records import TOYS

hook = watchglass.Hook("killed", flush_interval_s=600.0)
for loss in (2.0, 1.0, 0.5):
    with hook.step("train"):
        hook.save_scalar("loss", loss)
        hook.port.records.current().rows[TOYS].append((hook.port.ids.known("loss"), [loss, 0.25]))
while hook.port._recorder._whole_kept < 2:
    time.sleep(0.001)
os.kill(os.getpid(), signal.SIGKILL)
"""
SEES = '''
from watchglass.records import TOYS, Severity
from watchglass.rules import Needs, Rule

class SeesToys(Rule):
    """Says what it sees."""

    needs = (Needs(rows=(TOYS,), why="to play"),)

    def check(self, view):
        for row in view.rows(TOYS):
            yield self.finding(view, severity=Severity.ERROR, message=f"{row.tensor.name} has {row.loads.tolist()}")
'''
SOURCE = """
from watchglass.profile.metrics import Metric, MetricReading, MetricSource
class Toy(MetricSource):
    name = "toy"
    def read(self, now_ns):
        return [MetricReading(Metric("toy.load"), [0.5])]
"""

TOYS = {
    "rule": Toy(
        {
            "rules/GROUP/NAME.py": [("", RULE)],
            "rules/built_in.py": [("\n}\n", '\n    "TooHigh": BuiltInRule("GROUP.NAME", "default trees"),\n}\n')],
            "rules/knowledge/causes.toml": [
                ("[symptoms]\n", '[symptoms]\ntoo_high = { means = "it is a toy" }\n'),
                ("[links]\n", "[links]\ntoo_high = { bad_data = 0.9 }\n"),
            ],
        },
        """
assert "TooHigh" in cli("rules") and "TooHigh" in cli("rules", "trees") and "10.0" in cli("rules", "TooHigh")
build_run("run", [Step({"loss": 100.0})] * 3)
for name in ("text", "json", "sarif", "junit", "markdown"):
    assert "TooHigh" in cli("check", "run", "--format", name, status=1), name
assert "it is a toy" in cli("explain", "run", "TooHigh", "--rules", "TooHigh")
cli("report", "run", "-o", "report.html")
assert "TooHigh" in open("report.html").read()
""",
    ),
    "adapter": Toy(
        {
            "capture/NAME/__init__.py": [("", ADAPTER)],
            "capture/frameworks.py": [
                ("\n}\n", '\n    "toy_framework": Entry("watchglass.capture.NAME:ToyLoop"),\n}\n')
            ],
        },
        """
open("toy_framework.py", "w").write("class Model: pass")
from toy_framework import Model
model = Model()
with watchglass.watch(model, run="run"):
    for loss in (3.0, 2.0, 1.0):
        model.updated(loss)
assert not hasattr(model, "updated")
assert watchglass.open_run("run").scalars("loss")[1].tolist() == [3.0, 2.0, 1.0]
""",
    ),
    "kind of rows": Toy(
        {
            "records/rows.py": [
                (
                    "STEPS = RowKind(",
                    'TOYS = RowKind("toys", 90, (_TENSOR, Field("loads", "f32", array=True)))\nSTEPS = RowKind(',
                ),
                ("    for kind in (STEPS, ", "    for kind in (TOYS, STEPS, "),
            ],
            "records/__init__.py": [("    ROW_KINDS as ROW_KINDS,", "    ROW_KINDS as ROW_KINDS,\n    TOYS as TOYS,")],
        },
        f"KILLED, SEES = {KILLED!r}, {SEES!r}"
        """
from watchglass.records import TOYS
open("killed.py", "w").write(KILLED)
open("sees.py", "w").write(SEES)
assert subprocess.run([sys.executable, "killed.py"]).returncode == -signal.SIGKILL
loads = "select loads from toys order by step"
assert watchglass.open_run("killed").sql(loads).to_arrow().num_rows == 0, "the flight recorder alone has them"
assert [found.steps for found in harvest(LocalStore("killed"), by="launcher")] == [3]
assert watchglass.open_run("killed").sql(loads).to_arrow()["loads"].to_pylist()[:2] == [[2.0, 0.25], [1.0, 0.25]]
assert "loss has [2.0, 0.25]" in cli("check", "killed", "--rules", "sees.py:SeesToys", status=1)
build_run("none", [Step({"loss": 1.0})] * 200)
assert "toys never came (needed to play)" in cli("check", "none", "--rules", "sees.py:SeesToys", "-v", status=2)
with RunBuilder("run") as builder:
    builder.step(Step({"loss": 1.0}, rows={TOYS: [(0, [0.5, 1.0])]}))
    builder.leave()
for compacted in (False, True):
    if compacted:
        cli("compact", "run")
    run = watchglass.open_run("run")
    assert run.sql("select tensor, loads from toys").to_arrow().to_pylist() == [{"tensor": "loss", "loads": [0.5, 1.0]}]
    assert "toys" in cli("export", "run", "-o", f"out-{compacted}")
""",
    ),
    "stream": Toy(
        {
            "records/rows.py": [
                (
                    "STEPS = RowKind(",
                    'TOYS = RowKind("toys", 90, (Field("load", "f32"),), RowKey.TIME)\nSTEPS = RowKind(',
                ),
                ("    for kind in (STEPS, ", "    for kind in (TOYS, STEPS, "),
            ],
            "records/__init__.py": [("    ROW_KINDS as ROW_KINDS,", "    ROW_KINDS as ROW_KINDS,\n    TOYS as TOYS,")],
        },
        """
from watchglass.records import TOYS
from watchglass.store import StreamWriter
build_run("run", [{"scalars": {"loss": 1.0}}])
with StreamWriter(LocalStore("run"), 0, "toy") as writer:
    writer.write({TOYS: [(5, 0.5), (6, 1.0)]})
run = watchglass.open_run("run")
assert run.sql("select load from toys where stream = 'toy' order by load").to_arrow()["load"].to_pylist() == [0.5, 1.0]
assert "toys" in cli("export", "run", "-o", "out")
""",
    ),
    "source of metrics": Toy(
        {
            "profile/sources/NAME.py": [("", SOURCE)],
            "profile/sources/__init__.py": [
                (
                    '        "processor": ProcessorSource,',
                    '        "toy": lambda: __import__("watchglass.profile.sources.NAME", fromlist="x").Toy(),\n'
                    '        "processor": ProcessorSource,',
                )
            ],
        },
        """
import os
from watchglass.profile import Sampler, open_sources
from watchglass.store import StreamWriter
build_run("run", [{"scalars": {"loss": 1.0}}])
sampler = Sampler(open_sources(os.getpid(), True)[0], StreamWriter(LocalStore("run"), 0, "system"), 0.5)
sampler.sample()
sampler.close()
run = watchglass.open_run("run")
assert run.samples("toy.load").values.tolist() == [0.5]
assert run.sql("select value from samples where metric = 'toy.load'").to_arrow()["value"].to_pylist() == [0.5]
""",
    ),
    "action": Toy(
        {
            "actions/NAME.py": [("", ACTION)],
            "actions/registry.py": [("_BUILT_IN = {\n", '_BUILT_IN = {\n    "Shout": "watchglass.actions.NAME",\n')],
        },
        """
from watchglass.config import ActionSpec
from watchglass.testing import delivered, example_event
assert "Shout" in cli("actions") and "the file" in cli("actions", "Shout")
assert delivered(ActionSpec("Shout", {"path": "out"}), example_event()).done
assert open("out").read() == "ExplodingTensor"
""",
    ),
    "view: a format of verdicts": Toy(
        {
            "view/NAME.py": [("", FORMAT)],
            "view/formats.py": [("FORMATS = {\n", 'FORMATS = {\n    "toy": Format("toy", "NAME", "toy_document"),\n')],
        },
        """
build_run("run", [Step({"loss": 1.0})] * 3)
assert cli("check", "run", "--format", "toy", status=2) == "toy of run"
cli("check", "run", "--format", "toy", "-o", "out.toy", status=2)
assert open("out.toy").read() == "toy of run"
assert "toy" in cli("check", "--help")
""",
    ),
    "dashboard: a page of a run": Toy(
        {
            "dashboard/run_pages.py": [
                ("def _settings(", "def _toy(shown):\n    return [Text('a toy')]\n\n\ndef _settings("),
                ('    "settings": RunPage(', '    "toy": RunPage("Toy", _toy, "steps"),\n    "settings": RunPage('),
            ],
        },
        """
import threading
from starlette.testclient import TestClient
from watchglass.dashboard.application import application
from watchglass.dashboard.listing import Listing

build_run("run", [Step({"loss": 1.0})])
served = application(Listing("run"), token="t", cookie="c")
client = TestClient(served, base_url="http://127.0.0.1", cookies={"c": "t"})
page = client.get("/latest")
assert ">Toy</a>" in page.text
assert "a toy" in client.get(f"{page.url}/toy").text
""",
    ),
    "view: a figure": Toy(
        {
            "view/figures.py": [
                ("def run_figures(", FIGURE + "def run_figures("),
                ("None, str]] = [\n", 'None, str]] = [\n        (toy_figure(run), "A toy."),\n'),
            ]
        },
        """
build_run("run", [Step({"loss": 1.0})] * 3)
cli("report", "run", "-o", "report.html")
assert "A toy." in open("report.html").read()
""",
    ),
    "store": Toy(
        {
            "store/media/NAME.py": [("", STORE)],
            "store/media/locations.py": [("    scheme = scheme_of(location)\n", OPENED)],
            "config/locations.py": [('OBJECT_SCHEMES = ("s3", ', 'OBJECT_SCHEMES = ("toy", "s3", ')],
        },
        """
place = f"toy://{os.getcwd()}/run"
with watchglass.Hook(place) as hook:
    for loss in (2.0, 1.0):
        with hook.step():
            hook.save_scalar("loss", loss)
assert type(watchglass.open_run(place).store).__name__ == "ToyStore"
assert "run" in cli("show", place)
""",
    ),
}


@pytest.fixture(scope="module")
def table(repository: Path) -> dict[str, list[str]]:
    """The files of each row of the page's table."""
    text = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = text.split("| a new | touches |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [row.strip("| ").split(" | ") for row in rows]
    return {name: re.findall(r"`([\w/]+\.\w+)`", files) for name, files, *_ in cells}


def test_the_layers_are_those_of_the_import_contract(repository: Path) -> None:
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn: list[set[str]] = []
    for number, packages in re.findall(r"^\| ?(\d*) \| (`[^|]*`) \| .* \|$", page, re.MULTILINE):
        names = {name.removesuffix(".py") for name in re.findall(r"`([\w.]+)`", packages)}
        drawn += [names] if number else []
        drawn[-1] |= names
    contract = (repository / "pyproject.toml").read_text(encoding="utf-8").split("\nlayers = [")[1].split("]")[0]
    assert drawn == [set(layer.split(" | ")) for layer in re.findall(r'"(.*)"', contract)]


def test_every_file_is_on_the_page_by_its_name_or_that_of_its_folder(repository: Path) -> None:
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    named, folders = set(re.findall(r"`(?:\w+/)*(\w+\.py)`", page)), set(re.findall(r"`(?:\w+/)*(\w+)/`", page))
    source = repository / "src" / "watchglass"
    files = [file.relative_to(source) for file in source.rglob("*.py") if not file.stem.startswith("__")]
    assert [str(file) for file in files if file.name not in named and not folders & set(file.parts[1:-1])] == []
    others = {name for name in named if name.startswith("test_")} | {"NAME.py", "__init__.py"}
    assert named - {file.name for file in files} == others


def test_every_new_member_touches_at_most_three_files(table: dict[str, list[str]]) -> None:
    assert set(table) == set(TOYS)
    assert {name: files for name, files in table.items() if len(files) > 3} == {}


@pytest.mark.parametrize("name", TOYS)
def test_a_toy_is_added_by_the_files_of_the_table(
    name: str, table: dict[str, list[str]], repository: Path, tmp_path: Path
) -> None:
    assert set(TOYS[name].edits) <= set(table[name]), "files that the table does not name"
    package, folder = tmp_path / "changed" / "watchglass", tmp_path / "empty"
    shutil.copytree(repository / "src" / "watchglass", package)  # with its bytecode: only what is edited is compiled
    folder.mkdir()
    for file, edits in TOYS[name].edits.items():
        path = package / file.replace("GROUP", "classic").replace("NAME", "toy")
        for old, new in edits:
            new = new.replace("GROUP", "classic").replace("NAME", "toy")
            if old:
                before = path.read_text(encoding="utf-8")
                assert before.count(old) == 1, (file, old)
                new = before.replace(old, new)
            path.parent.mkdir(exist_ok=True)
            path.write_text(new, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + TOYS[name].check], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
