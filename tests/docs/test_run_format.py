"""docs/run-format.md tells the truth: its reader reads, its numbers are the code's."""

import re
from pathlib import Path

import numpy as np
import pytest

from watchglass.records import (
    FORMAT_VERSION,
    ROW_KINDS,
    TENSORS,
    Encoding,
    Finding,
    Mode,
    Observation,
    Reduction,
    Role,
    RuleStatus,
    Severity,
    Status,
    of_steps,
)
from watchglass.store import FrameKind, LocalStore, compact
from watchglass.store.encoding import histogram_columns
from watchglass.store.encoding.frames import MAX_PAYLOAD
from watchglass.testing import Step, build_run

PAGE = Path(__file__).parents[2] / "docs" / "run-format.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("compacted", [False, True])
def test_the_minimal_reader_reads_a_real_run(tmp_path, compacted):
    rng = np.random.default_rng(0)
    steps = [
        Step(
            {"loss": 1.0 / (n + 1)},
            {"gradient/fc1.weight": rng.normal(size=(3, 4)), "fc1.weight": np.ones((3, 4))},
            mode=Mode.EVAL if n % 5 == 4 else Mode.TRAIN,
            reductions={"fc1.weight": {Reduction.MEDIAN: float(n)}} if n % 5 != 4 else {},
        )
        for n in range(40)
    ]
    names = {"run": build_run(tmp_path / "run", steps, steps_per_flush=7)}
    if compacted:
        compact(LocalStore(names["run"]))
        assert not list((tmp_path / "run").glob("attempts/*/segments/*/*"))
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the page's own example
    assert len(names["losses"]) == 32
    assert len(names["norms"]) == len(names["histograms"]) == 64
    assert len(names["medians"]) == 32
    assert sum(names["histograms"][0, "fc1.weight"].values()) == 12


def test_kinds_of_frames_are_all_listed():
    table = dict(re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", TEXT, re.MULTILINE))
    named = {number: kind.name.upper() for number, kind in ROW_KINDS.items()} | {
        kind.value: kind.name for kind in FrameKind
    }
    assert table == {str(number): name for number, name in named.items()}


def test_sizes_and_fields_are_those_of_the_code():
    assert f"version {FORMAT_VERSION[0]}.{FORMAT_VERSION[1]}" in TEXT
    assert TEXT.count(f"at most {MAX_PAYLOAD:,}") == 2
    assert f"at most {histogram_columns.MAX_BINS:,} bins" in TEXT
    for name in histogram_columns.NAMES:
        assert f"`{name}`" in TEXT
    for role in Role:
        assert role.value in TEXT
    for field in TENSORS.own:
        assert f"`{field.name}`" in TEXT
    for kind in of_steps():
        assert f"<!-- rows: {kind.name} -->" in TEXT


def table_of(kind):
    """The fields of a kind as a table of the page."""
    words = {"text": "string", "json": "object"} if kind.encoding is Encoding.JSON else {}
    rows = ["| field | type | |", "|---|---|---|"]
    for field in kind.fields:
        shown = words.get(field.type, "integer" if words else field.type) + ("[]" if field.array else "")
        unit = f" ({field.unit})" if field.unit else ""
        rows.append(f"| `{field.name}` | {shown} | {field.means}{unit} |")
    return "\n".join(rows)


def with_tables(text):
    """The page with the tables of all kinds as they are declared: run this file to write it."""
    kinds = {kind.name: kind for kind in ROW_KINDS.values()}
    marked = re.compile(r"(<!-- rows: (\w+) -->\n)\n(?:(?:\|.*\n)+\n)?")
    return marked.sub(lambda found: f"{found[1]}\n{table_of(kinds[found[2]])}\n\n", text)


def test_the_tables_of_fields_are_those_that_are_declared():
    assert with_tables(TEXT) == TEXT


def test_the_fields_of_the_journal_are_all_named():
    page = TEXT[TEXT.index("**FINDING**") :]
    finding, status, observation = page[: page.index("\n## ")].split("\n* ")[1:]
    found = Finding("", "", Severity.INFO, 0, 0, 1, Mode.TRAIN, "worker_0", (), None, None, "")
    for text, record in (
        (finding, found),
        (status, RuleStatus("", Status.ERROR)),
        (observation, Observation("", 0)),
    ):
        assert [name for name in record.to_json() if f"`{name}`" not in text] == []
    assert [word.value for word in Status if f"`{word.value}`" not in status] == []


if __name__ == "__main__":
    PAGE.write_text(with_tables(TEXT), encoding="utf-8")
