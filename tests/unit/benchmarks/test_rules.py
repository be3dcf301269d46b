"""The simulated trainings of the rules' benchmark are what they are called, and its parts measure what they say."""

from pathlib import Path

import pytest

from growing_runs import Run, write_run
from rules import BENCHMARKS, _grow, _parts
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import default_rules
from watchglass.run import open_run
from watchglass.store import LocalStore


def test_a_healthy_run_has_no_finding_and_a_sick_one_has(tmp_path: Path) -> None:
    for sick in (False, True):
        folder = tmp_path / str(sick)
        write_run(folder, 60, 64, 8, sick=sick)
        run = open_run(str(folder))
        assert run.problems == []
        assert run.finished
        assert run.statistics().to_arrow().num_rows == 64 * 60
        found: dict[str, int] = {}
        for finding in replay(str(folder)).findings:
            if finding.severity is not Severity.INFO:
                found[finding.rule] = found.get(finding.rule, 0) + finding.count
        assert set(found) == ({"LossNotDecreasing", "WeightUpdateRatio"} if sick else set())
        assert all(count > 40 for count in found.values())


def test_every_part_is_measured(tmp_path: Path) -> None:
    spent = _parts(write_run(tmp_path, 30, 32, 8))
    assert list(spent) == [
        "follower, from frames to views", "reading and decoding alone", *(spec.name for spec in default_rules()),
    ]  # fmt: skip
    assert all(seconds > 0 for seconds in spent.values())


def test_growth_counts_what_comes_after_the_first_steps(tmp_path: Path) -> None:
    write_run(tmp_path, 3, 520, 40)
    found = _grow(tmp_path)
    assert found["seconds_per_step"] > 0
    assert 0 <= found["beyond_imports_bytes"] < 1 << 30


def test_a_run_is_written_while_it_is_followed(tmp_path: Path) -> None:
    run = Run(LocalStore(tmp_path), 0)
    run.write(3)
    assert open_run(str(tmp_path)).steps() == [0, 1, 2]
    run.write(2)
    assert open_run(str(tmp_path)).steps() == [0, 1, 2, 3, 4]
    run.close()


@pytest.mark.slow
def test_a_finding_is_waited_for(tmp_path: Path) -> None:
    results = BENCHMARKS["latency"](tmp_path, quick=True)
    assert [result.target for result in results] == [1000, 1000]
    assert all(result.value > 0 for result in results)
