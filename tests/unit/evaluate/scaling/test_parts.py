"""Parts as text: whoever answers them, together they say what one engine says, with the user's own rules too."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import training
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import ClusterError, MissingFileError, NotARunError
from watchglass.evaluate import Evaluation, replay
from watchglass.evaluate.engine.partial import merge
from watchglass.evaluate.scaling.contents import contents_of
from watchglass.evaluate.scaling.plan import Part, plan
from watchglass.evaluate.scaling.rule_files import RuleFiles, absolute_rules, read_rule_files
from watchglass.evaluate.scaling.tasks import answer, read_answer, request_of
from watchglass.rules import default_rules
from watchglass.store import LocalStore, compact
from watchglass.testing import build_run

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
    return EvaluatorConfig(run, None, (*default_rules(), *rules))


def plain(found: Evaluation) -> dict[str, object]:
    """All of an evaluation, with NaN as text."""
    return {**vars(found), "findings": [finding.to_json() for finding in found.findings]}


def in_parts(settings: EvaluatorConfig, cores: int, files: dict[str, str]) -> dict[str, object]:
    contents = contents_of(LocalStore(settings.run), settings.run)
    # A plan as for much more data, so that there is something to divide.
    contents = replace(contents, workers={name: size << 14 for name, size in contents.workers.items()})
    parts = plan([contents], len(settings.rules), cores)
    assert len(parts) > 1
    answers = [read_answer(answer(request_of(part, settings, files))) for part in reversed(parts)]
    assert [each.error for each in answers] == [None] * len(parts)
    return plain(merge([each.partial for each in answers if each.partial is not None], settings.rules))


@pytest.mark.parametrize("cores", [1, 2, 12])
def test_parts_together_say_what_one_engine_says(run: str, cores: int) -> None:
    assert in_parts(config(run), cores, {}) == plain(replay(run))


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
    assert in_parts(config(run), 2, {}) == plain(replay(run))


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
    placed, moved = RuleFiles().place(absolute_rules(rules), {here: OWN})
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
    found = read_answer(answer(request_of(Part(str(tmp_path), None, None, 0), config(""), {})))
    assert found.partial is None
    assert isinstance(found.error, NotARunError)
    assert str(tmp_path) in str(found.error)


def test_another_release_elsewhere_is_refused(run: str) -> None:
    request = json.loads(request_of(Part(run, None, None, 0), config(run), {}))
    found = read_answer(answer(json.dumps({**request, "version": "9.9"})))
    assert isinstance(found.error, ClusterError)
    assert "needs the same watchglass" in str(found.error)
