"""What notebooks show: small, and nothing in it that a foreign name could turn into markup."""

from html.parser import HTMLParser

import numpy as np
import pytest

from watchglass.records import Mode, Role
from watchglass.run import open_run, open_runs
from watchglass.testing import Step, build_run

#: Attributes of the course of a loss.
DRAWN = {"width", "height", "viewbox", "preserveaspectratio", "overflow", "role", "aria-label", "d", "stroke"}
EVIL = "<script>alert('x')</script>&\"\x1b[31m"


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.open = set(), []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.open.append(tag)
        # A name of an attribute is as in HTML, small.
        assert {name for name, _ in attributes} <= {"class"} | (DRAWN if tag in ("svg", "path") else set())

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check(html):
    parser = _Tags()
    parser.feed(html)
    assert parser.open == []
    assert parser.tags <= {
        "style", "div", "b", "p", "small", "svg", "path", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert "alert('" not in html
    assert "\x1b" not in html
    assert len(html) < 24_000
    return html


@pytest.fixture
def run(tmp_path):
    steps = [
        Step({"loss": 1.0 / (n + 1), EVIL: 2.0}, {f"{EVIL}.weight": np.ones((2, 3))}, raw={"w": np.ones((2, 3))})
        for n in range(12)
    ]
    return open_run(build_run(tmp_path / "runs" / "one", [*steps, Step({"loss": 3.0}, mode=Mode.EVAL)]))


def test_everything_has_markup_that_is_escaped_and_closed(run, tmp_path):
    (weight,) = run.tensor_names(role=Role.WEIGHT, regex="script")
    shown = {
        "run": run, "tensor": run.tensor(weight), "scalar": run.tensor(EVIL), "raw": run.tensor("w"),
        "step": run.step(0), "statistics": run.statistics(), "tensors": run.table("tensors"),
        "scalars": run.table("scalars"), "result": run.sql("select tensor from scalars"), "runs": open_runs(tmp_path),
    }  # fmt: skip
    found = {name: check(thing._repr_html_()) for name, thing in shown.items()}
    for name in ("tensor", "scalar", "statistics", "tensors", "scalars", "result", "step"):
        assert "&lt;script&gt;" in found[name], name
    assert "12 TRAIN and 1 EVAL steps" in found["run"]
    assert "and 18 more rows" in found["scalars"] or "more rows" in found["scalars"]
    assert "runs/one" in found["runs"] or "one" in found["runs"]


def test_long_texts_are_cut(tmp_path):
    run = open_run(build_run(tmp_path / "run", [Step({"x" * 5000: 1.0})]))
    assert len(run.table("tensors")._repr_html_()) < 4000


def test_reprs_are_one_line(run, tmp_path):
    table = run.statistics()
    things = [run, run.tensor("loss"), run.step(0), table, run.worker(), run.journal, open_runs(tmp_path)]
    table.to_arrow()
    for thing in things:
        assert "\n" not in repr(thing)
        assert repr(thing).startswith(type(thing).__name__ + "(")
    assert repr(run.step(0)) == "RecordedStep(TRAIN step 0 of worker_0: 2 scalars, 1 tensor captured, 1 whole)"
    assert repr(run.worker()) == "Worker('worker_0': 12 TRAIN and 1 EVAL steps, left)"
