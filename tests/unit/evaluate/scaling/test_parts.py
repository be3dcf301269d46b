"""Parts as text: the merged answers of any processes equal those of one engine, also for rules of users."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import scale
from command_line import RULES, training
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import ClusterError, MissingFileError, NotARunError
from watchglass.evaluate import replay
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.engine.partial import merge
from watchglass.evaluate.scaling.contents import contents_of
from watchglass.evaluate.scaling.plan import Part, plan
from watchglass.evaluate.scaling.rule_files import absolute_rules, place_rule_files, read_rule_files
from watchglass.evaluate.scaling.tasks import answer, read_answer, request_of
from watchglass.records import Evaluation
from watchglass.rules import default_rules
from watchglass.store import LocalStore, StoredObject, compact, layout
from watchglass.testing import RunBuilder, build_run

OWN = """
from watchglass import Rule, Severity

class Marks(Rule):
    every: int = 10

    def check(self, view):
        if view.mode_step == 77:
            raise RuntimeError("no luck at 77")
        if view.mode_step % self.every == 0:
            yield self.finding(view, severity=Severity.WARNING, message="a mark", subject=str(view.mode_step))
"""


@pytest.fixture
def run(run_path: Path) -> str:
    return build_run(run_path, training(90, broken_at=60), workers=3)


def config(run: str, *rules: RuleSpec) -> EvaluatorConfig:
    return EvaluatorConfig(run, None, (*RULES, *rules))


def plain(found: Evaluation) -> dict[str, object]:
    """All of an evaluation, with NaN as text."""
    return {**vars(found), "findings": [finding.to_json() for finding in found.findings]}


def in_parts(
    settings: EvaluatorConfig, cores: int, files: dict[str, str], whole: Sequence[int] = ()
) -> dict[str, object]:
    contents = contents_of(LocalStore(settings.run), settings.run)
    # A plan as for much more data, so that there is something to divide.
    contents = replace(contents, workers={name: size << 14 for name, size in contents.workers.items()})
    parts = plan([contents], len(settings.rules), cores, whole=whole)
    assert len(parts) > 1
    answers = [read_answer(answer(request_of(part, settings, files))) for part in reversed(parts)]
    return plain(merge(answers, settings.rules))


def test_parts_together_say_what_one_engine_says(run: str) -> None:
    expected = plain(replay(run))
    whole = Engine(default_rules()).whole
    assert whole, "rules that compare ranks"
    for cores in (1, 2, 12):
        assert in_parts(EvaluatorConfig(run, None, default_rules()), cores, {}, whole) == expected


def test_the_size_of_workers_comes_from_listings(run: str) -> None:
    found = contents_of(LocalStore(run), "here")
    assert (found.run, list(found.workers)) == ("here", ["worker_0", "worker_1", "worker_2"])
    assert found.bytes == sum(entry.size for entry in LocalStore(run).list("attempts/0000/segments")) > 10_000


def test_a_compacted_run_is_as_large_as_its_generation(run: str) -> None:
    store = LocalStore(run)
    segments = {entry.path: store.read(entry.path) for entry in store.list("attempts/0000/segments")}
    compact(store)
    for path, data in segments.items():  # not removed yet, or late: what a generation covers counts once
        store.write(path, data, replace=True)
    found = contents_of(store, run)
    assert list(found.workers) == ["worker_0", "worker_1", "worker_2"]
    stored = [entry for entry in LocalStore(run).list("compacted/00000001") if not entry.path.endswith(".json")]
    assert found.bytes == sum(entry.size for entry in stored) > 10_000
    assert in_parts(config(run), 2, {}) == plain(replay(run, RULES))


class Objects(LocalStore):
    """A folder that is asked like an object store, and counts that."""

    appends = False
    asked: ClassVar[Counter[str]] = Counter()

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        self.asked["segment" if layout.parse_segment(path) else "read"] += 1
        return super().read(path, start, end)

    def list(self, prefix: str = "", after: str = "") -> list[StoredObject]:
        self.asked["list segments" if "segments" in prefix else "list"] += 1
        return super().list(prefix, after)

    def folders(self, prefix: str = "") -> Sequence[str]:
        self.asked["list"] += 1
        return super().folders(prefix)


@pytest.mark.parametrize("compacted", [False, True])
def test_what_was_listed_for_the_plan_is_not_listed_again_by_each_part(run_path: Path, compacted: bool) -> None:
    run = build_run(run_path, training(90, broken_at=60), workers=3, steps_per_flush=10)
    if compacted:
        compact(LocalStore(run))
        with RunBuilder(run_path, workers=3) as builder:  # and an attempt that is not
            for step in training(20):
                builder.step(step)
    store, settings = Objects(run), config(run)
    contents = contents_of(store, run, most_listed=1000)
    assert contents.segments is not None
    stored = {entry.path: entry.size for attempt in (0, 1) for entry in LocalStore(run).list(layout.segments(attempt))}
    assert {
        layout.segment(attempt, bucket, worker, seq): size
        for worker, rows in contents.segments.items()
        for worker, attempt, bucket, seq, size in rows
    } == stored
    answers = []
    for worker in contents.workers:
        Objects.asked.clear()
        part = Part(run, (worker,), None, 0)
        answers.append(read_answer(answer(request_of(part, settings, {}, contents), Objects)))
        assert Objects.asked["list segments"] == 0
        # A manifest, generations, attempts, journal, claims; of what was compacted also its frames and statistics.
        others = Objects.asked["read"] + Objects.asked["list"]
        assert others <= scale.PART_REQUESTS * (3 if compacted else 1)
    assert plain(merge(answers, settings.rules)) == plain(replay(run, RULES))


def test_the_names_of_very_many_segments_are_not_handed_out(run: str) -> None:
    assert contents_of(Objects(run), run, most_listed=2).segments is None
    assert contents_of(LocalStore(run), run, most_listed=1000).segments is None, "it may have grown by then"
    settings = config(run)
    assert (
        json.loads(request_of(Part(run, None, None, 0), settings, {}, contents_of(Objects(run), run)))["segments"]
        is None
    )


def test_a_run_that_grows_is_evaluated_as_it_was_listed(run_path: Path) -> None:
    """All parts see one moment of it."""
    with RunBuilder(run_path) as builder:
        builder.store.appends = False
        builder.step(scalars={"loss": 1.0})
        settings = config(str(run_path))
        contents = contents_of(Objects(run_path), str(run_path), most_listed=1000)
        request = request_of(Part(str(run_path), None, None, 0), settings, {}, contents)
        builder.step(scalars={"loss": 1.0})
        found = read_answer(answer(request, Objects))
    assert found.train_steps == {(0, "worker_0"): 1}


def test_a_rule_of_a_user_travels_as_its_source(run: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    rule = RuleSpec(f"{file}:Marks", {"every": 30})
    settings = config(run, rule)
    expected = replay(run, settings.rules)
    assert "no luck at 77" in expected.statuses[-1].reason
    files = read_rule_files(settings.rules)
    assert files == {str(file): OWN}
    assert in_parts(settings, 2, files) == plain(expected)
    file.unlink()  # as on another machine
    assert in_parts(settings, 2, files) == plain(expected)
    file.write_text(OWN.replace("a mark", "another mark"))  # what is there is not what was meant
    assert in_parts(settings, 2, files) == plain(expected)


def test_rules_keep_their_class_and_parameters_wherever_their_file_is(in_tmp_path: Path) -> None:
    Path("own.py").write_text(OWN)
    here = str(in_tmp_path / "own.py")
    rules = (RuleSpec("own.py:Marks", {"every": 3}), RuleSpec("own.py"), RuleSpec("DeadRelu"))
    assert [rule.name for rule in absolute_rules(rules)] == [f"{here}:Marks", here, "DeadRelu"]
    Path("own.py").unlink()
    placed, moved = place_rule_files(absolute_rules(rules), {here: OWN})
    (where,) = moved
    assert moved[where] == here
    assert Path(where).read_text() == OWN
    assert os.stat(Path(where).parent.parent).st_mode & 0o077 == 0
    assert [rule.name for rule in placed] == [f"{where}:Marks", where, "DeadRelu"]
    assert placed[0].parameters == {"every": 3}


def test_a_rule_file_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"none\.py cannot be read"):
        read_rule_files([RuleSpec(f"{tmp_path}/none.py:Marks")])


def test_what_is_wrong_with_a_run_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[]")
    answered = answer(request_of(Part(str(tmp_path), None, None, 0), config(""), {}))
    with pytest.raises(NotARunError, match=re.escape(str(tmp_path))):
        read_answer(answered)


def test_another_release_elsewhere_is_refused(run: str) -> None:
    request = json.loads(request_of(Part(run, None, None, 0), config(run), {}))
    with pytest.raises(ClusterError, match="needs the same watchglass"):
        read_answer(answer(json.dumps({**request, "version": "9.9"})))
