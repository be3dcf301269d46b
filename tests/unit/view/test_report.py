"""The report: needs neither a network nor watchglass, safe with foreign names, nothing overwritten."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from watchglass.errors import InvalidValueError, RunExistsError, StoreError
from watchglass.records import RuleStatus, Status, Verdict
from watchglass.run import Run, open_run
from watchglass.testing import RunBuilder, Step, build_run
from watchglass.view import Judged, check_report_path, render_report, write_report


class Page(HTMLParser):
    """Collects what a browser would fetch, the elements, and the text outside scripts and styles."""

    FETCHING = ("src", "href", "srcset", "data", "action", "poster", "background", "manifest")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [str(value) for name, value in attrs if name in self.FETCHING]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.words.append(data)


@pytest.fixture
def page(sick_run: Run, sick_verdict: Verdict) -> Page:
    return Page(render_report(sick_run, sick_verdict))


def test_nothing_is_fetched(sick_run: Run, sick_verdict: Verdict, page: Page) -> None:
    # Cells of grids are pictures in the page.
    assert [each for each in page.fetched if not each.startswith("data:image/png;base64,")] == []
    assert "link" not in page.tags
    assert "iframe" not in page.tags
    text = render_report(sick_run, sick_verdict)
    assert "default-src 'none'" in text
    assert "url(" not in text.split("</style>")[0]
    assert "@import" not in text.split("</style>")[0]


def test_names_from_the_run_are_text_and_never_markup(sick_run: Run, sick_verdict: Verdict, page: Page) -> None:
    assert "img" not in page.tags
    assert page.handlers == []
    assert "<img src=x onerror=alert(1)>.weight" in " ".join(page.words)
    text = render_report(sick_run, sick_verdict)
    assert "<img" not in text
    assert "<script" not in text


def test_no_name_turns_the_direction_of_the_page_or_breaks_a_line(sick_run: Run, sick_verdict: Verdict) -> None:
    nasty = "a\u202eb\x1b\x00\u2028c"
    cause = replace(sick_verdict.diagnoses[0].causes[0].cause, title=nasty, explanation=nasty, source=nasty)
    ranked = replace(sick_verdict.diagnoses[0].causes[0], cause=cause, evidence=(nasty,), what_to_try=(nasty,))
    diagnosis = replace(
        sick_verdict.diagnoses[0], causes=(ranked, ranked), headline=nasty, subject=nasty, what_to_try=(nasty,)
    )
    finding = replace(sick_verdict.findings[0], rule=nasty, worker=nasty, tensors=(nasty,), message=nasty)
    status = replace(sick_verdict.statuses[0], rule=nasty, reason=nasty)
    explained = replace(
        sick_verdict, run=nasty, diagnoses=(diagnosis,), findings=(finding,), statuses=(status,), problems=(nasty,),
        metrics={nasty: 1.0},
    )  # fmt: skip
    body = render_report(sick_run, explained).split("<body>")[1]
    assert "a\\u202eb\\x1b\\x00" in body
    for letter in ("\u202e", "\x1b", "\x00", "\u2028"):
        assert letter not in body


def test_what_is_no_answer_is_not_shown_as_healthy(sick_run: Run, healthy_verdict: Verdict) -> None:
    assert '<header class="healthy">' in render_report(sick_run, healthy_verdict)
    assert '<header class="warning">' in render_report(sick_run, replace(healthy_verdict, status="incomplete"))


def test_it_says_what_where_since_when_why_and_what_to_try(page: Page) -> None:
    text = " ".join(" ".join(page.words).split())
    for expected in (
        "stopped: 1 error, 1 warning, 1 info",
        "training diverges to NaN since step 30, first in conv1",
        "the learning rate is too high",
        "83 %, from step 30 on",
        "Lower the learning rate by a factor of 10",
        "step 30: ExplodingGradient: the gradient norm grew 100-fold within 16 steps (30 times until step 59)",
        "340 steps not run, about 37 s saved",
        "Evidence for step 30: the gradient norm grew 100-fold within 16 steps (ExplodingGradient)",
        "Evidence against step 45: the loss rose in the steps before (ExplodingTensor)",
        "validation accuracy 0.2051",
        "updates were captured every 128 steps, it needs 16",
        "capture cost at most 55 ms of 6.6 s (0.83 %)",
    ):
        assert expected in text


def test_rules_without_an_answer_are_one_line_that_unfolds(sick_run: Run, sick_verdict: Verdict) -> None:
    starved = tuple(RuleStatus(f"Rule{number}", Status.STARVED, "no data") for number in range(9))
    text = render_report(sick_run, replace(sick_verdict, statuses=starved))
    head = text.split("<header")[1].split("</header>")[0]
    assert "<summary>9 rules could not be evaluated</summary>" in head
    assert head.count("could not be evaluated: no data") == 9 == head.split("<details>")[1].count("<li>Rule")


def test_it_has_a_figure_for_everything_recorded(page: Page) -> None:
    assert page.tags.count("figure") == 5


def test_it_shows_what_the_script_saved_and_what_it_was_started_with(tmp_path: Path, healthy_verdict: Verdict) -> None:
    settings = {
        "model": {"module_types": {"": "Net", "fc": "Linear"}, "parameters": 1283, "roots": ["Net"], "compiled": True},
        "optimizer": {"type": "AdamW", "groups": [{"lr": 0.003, "weight_decay": 0.05, "amsgrad": False}]},
    }
    made = [
        Step({"loss": 1.0, f"<b>{'x' * 3}": 2.0, "reward": float(n)}, facts=settings if not n else {}) for n in range(9)
    ]
    run = open_run(build_run(tmp_path / "run", made))
    page = Page(render_report(run, healthy_verdict))
    assert page.tags.count("figure") == 3
    text = " ".join(" ".join(page.words).split())
    for expected in (
        "Saved by the script", "Settings", "Model Net: 2 modules, 1,283 parameters, compiled",
        "Optimizer AdamW: lr 0.003, weight_decay 0.05",
    ):  # fmt: skip
        assert expected in text
    assert "amsgrad" not in text


def test_its_size_is_stated(sick_run: Run, sick_verdict: Verdict) -> None:
    text = render_report(sick_run, sick_verdict)
    assert "<!--" not in text.split("</style>")[1]
    assert f"One file of {len(text.encode()) / 1e3:.1f} kB" in text


def test_a_run_without_data_has_a_report_without_figures(tmp_path: Path, healthy_verdict: Verdict) -> None:
    run = open_run(build_run(tmp_path / "empty"))
    text = render_report(run, replace(healthy_verdict, status="no data", metrics={}))
    assert len(text) < 20_000
    assert "no training step was recorded" in text


def test_an_existing_file_is_refused_and_kept(tmp_path: Path, sick_run: Run, sick_verdict: Verdict) -> None:
    target = tmp_path / "report.html"
    target.write_text("mine")
    judged = Judged([sick_verdict], runs={sick_verdict.run: sick_run})
    with pytest.raises(RunExistsError, match=r"report\.html exists; choose another file"):
        write_report(judged, target)
    assert target.read_text() == "mine"
    assert write_report(judged, target, replace=True) == target.stat().st_size
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_folders_are_made_and_refused_as_files(tmp_path: Path) -> None:
    assert check_report_path(tmp_path / "new" / "report.html").parent.is_dir()
    with pytest.raises(InvalidValueError, match="is a folder; name the file"):
        check_report_path(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make the folder"):
        check_report_path(tmp_path / "file" / "report.html")


def test_the_seam_of_a_resumed_training_is_marked(tmp_path: Path) -> None:
    for start, resumed in ((0, None), (3, {"start_step": 3, "source": "optimizer"})):
        with RunBuilder(tmp_path / "run", resumed=resumed) as builder:
            for step in range(start, start + 5):
                builder.step(scalars={"loss": 1.0 / (1 + step)})
            builder.leave()
    run = open_run(tmp_path / "run")
    verdict = Verdict(str(tmp_path / "run"), "no issues found", (), (), ())
    assert "attempt 1 continues at step 3 (by the optimizer)" in " ".join(Page(render_report(run, verdict)).words)
