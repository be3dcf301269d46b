"""``watchglass top``: what it shows is that of the run; keys, pressed by textual's own pilot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from dashboards import HOSTILE, finding, steps
from watchglass.records import PHASES, RuleStatus, Severity, Status
from watchglass.run import open_run
from watchglass.store import JournalWriter, layout
from watchglass.testing import RunBuilder, build_run
from watchglass.top import LookingThread, RunLook, TopApp, look_at, look_json
from watchglass.top.braille import braille_line

JOURNAL = [
    replace(finding("DeadRelu", "[bold]half[/bold] of the units are dead"), id="a" * 12, severity=Severity.WARNING),
    replace(finding("ExplodingGradient", HOSTILE), id="b" * 12, step=14),
    RuleStatus("DeadRelu", Status.ISSUES_FOUND),
    RuleStatus("ExplodingGradient", Status.ISSUES_FOUND),
]


@pytest.fixture
def sick(run_path: Path) -> Path:
    phases = {PHASES: [(0.1, 0.0, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0)]}
    made = [replace(each, rows=phases) for each in steps()]
    build_run(run_path, made, modules={HOSTILE: "Linear"}, journal=JOURNAL, facts={"planned_steps": {"steps": 40}})
    return run_path


def press(
    look: RunLook, act: Callable[[TopApp, Pilot[None]], Awaitable[None]], columns: int = 100, **options: Any
) -> None:
    """Show a look in a terminal of 30 lines, and act on it."""

    async def run() -> None:
        app = TopApp(lambda: look, **options)
        async with app.run_test(size=(columns, 30)) as pilot:
            await pilot.pause()
            await act(app, pilot)

    asyncio.run(run())


def said(app: TopApp, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


def listed(app: TopApp) -> list[list[str]]:
    table = app.query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def shown(app: TopApp) -> str:
    """The text over the page."""
    return "\n".join(str(each.render()) for each in app.screen.query(Static))


def test_one_step_is_a_step(run_path: Path) -> None:
    look = look_at(open_run(build_run(run_path, [{"scalars": {"loss": 1.0}}])))
    assert look.progress(0) == "finished · 1 training step · rules not evaluated: watchglass check does"


def test_it_shows_verdict_progress_loss_phases_and_findings(sick: Path) -> None:
    look = look_at(open_run(sick))

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        assert said(app, "progress").startswith(f"{sick}  finished · 20 of 40 training steps (50 %) · rules evaluated")
        assert said(app, "verdict").startswith("1 error, 1 warning")
        assert said(app, "numbers") == "loss 0.1 at step 19 · 400 ms a step"
        assert said(app, "time") == "data 25 %  forward 75 %"
        rows = said(app, "loss").splitlines()
        assert (rows[0].split()[0], rows[4].split()[0]) == ("2", "0.1")
        assert listed(app) == [
            ["error", "ExplodingGradient", "14", HOSTILE],
            ["warning", "DeadRelu", "12", "[bold]half[/bold] of the units are dead"],
        ]

    press(look, act)


@pytest.mark.parametrize("judged", [True, False])
def test_a_run_that_goes_on_without_findings_says_so_if_its_rules_are_evaluated(run_path: Path, judged: bool) -> None:
    journal = [RuleStatus("DeadRelu", Status.IN_PROGRESS)] if judged else []
    with RunBuilder(run_path) as builder, JournalWriter(builder.store) as writer:
        builder.step({"scalars": {"loss": 1.0}})
        writer.write(journal)

        async def act(app: TopApp, pilot: Pilot[None]) -> None:
            assert said(app, "verdict") == (
                "no findings so far" if judged else "incomplete: the run has not ended; no rule was evaluated yet"
            )

        press(look_at(open_run(run_path)), act)


def test_words_filter_the_findings(sick: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"relu")
        await pilot.pause()
        assert [row[1] for row in listed(app)] == ["DeadRelu"]
        await pilot.press("escape")
        await pilot.pause()
        assert len(listed(app)) == 2
        assert not app.query_one(Input).has_class("shown")

    press(look_at(open_run(sick)), act)


@pytest.mark.parametrize("key", ["enter", "e"])
def test_a_finding_is_explained_by_its_rule(sick: Path, key: str) -> None:
    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", key)
        await pilot.pause()
        assert "aaaaaaaaaaaa  DeadRelu, warning: [bold]half[/bold]" in shown(app)
        assert "looks at" in shown(app)
        lines = app.screen.query_one("#lines Static", Static)
        assert max(map(len, str(lines.render()).splitlines())) <= lines.content_size.width
        await pilot.press("escape")
        await pilot.pause()
        assert len(app.screen_stack) == 1

    press(look_at(open_run(sick)), act, columns=120)


def test_a_rule_of_a_journal_is_not_executed(run_path: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    name = f"{tmp_path}/evil.py:Evil"
    build_run(
        run_path, steps(), modules={HOSTILE: "Linear"}, journal=[finding(name), RuleStatus(name, Status.ISSUES_FOUND)]
    )

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await pilot.pause()
        assert "evil.py:Evil" in shown(app)

    press(look_at(open_run(run_path)), act)


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    for _ in range(200):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("it did not happen")


def notes(app: TopApp) -> list[str]:
    return [str(each.message) for each in app._notifications]


@pytest.mark.parametrize("yes", [True, False])
def test_a_job_is_stopped_only_after_a_yes(run_path: Path, yes: bool) -> None:
    with RunBuilder(run_path) as builder:
        for each in steps(3):
            builder.step(each)

        async def act(app: TopApp, pilot: Pilot[None]) -> None:
            await pilot.press("S")
            await pilot.pause()
            assert f"Stop the job of {run_path}?" in shown(app)
            await pilot.press("y" if yes else "n")
            if yes:
                await until(pilot, lambda: notes(app))
                assert notes(app) == ["stops at training step 3"]

        press(look_at(open_run(run_path)), act)
        assert (builder.store.size(layout.control_commit("stop", 0, 0)) is not None) is yes


def test_next_steps_are_profiled_and_a_job_that_has_ended_says_why_not(run_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        for each in steps(3):
            builder.step(each)

        async def act(app: TopApp, pilot: Pilot[None]) -> None:
            await pilot.press("p")
            await until(pilot, lambda: notes(app))
            assert "training steps 3 to 7 will be profiled" in notes(app)[0]
            builder.leave()
            await pilot.press("p")
            await until(pilot, lambda: len(notes(app)) > 1)
            assert "has ended, so nothing of it can be profiled" in notes(app)[1]

        press(look_at(open_run(run_path)), act)


def test_it_shows_what_comes_and_keeps_the_finding_at_the_cursor(run_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        builder.step({"scalars": {"loss": 1.0}})
        with closing(LookingThread(str(run_path))) as follower:
            look = follower.newest

            async def run() -> None:
                app = TopApp(lambda: look)
                async with app.run_test(size=(100, 30)) as pilot:
                    await pilot.pause()
                    assert said(app, "numbers").startswith("loss 1 at step 0")
                    builder.step({"scalars": {"loss": 0.25}})
                    nonlocal_look()
                    await until(pilot, lambda: said(app, "numbers").startswith("loss 0.25 at step 1"))

            def nonlocal_look() -> None:
                nonlocal look
                for _ in range(100):
                    if follower.newest.verdict.train_steps == 2:
                        break
                    follower._closed.wait(0.1)
                look = follower.newest

            asyncio.run(run())


def test_a_run_that_cannot_be_read_any_more_is_still_shown(run_path: Path) -> None:
    build_run(run_path, steps(2))
    with closing(LookingThread(str(run_path))) as follower:
        follower._run.refresh = lambda: (_ for _ in ()).throw(OSError("gone"))  # type: ignore[method-assign, assignment]
        follower.look()
        assert (follower.newest.problem, follower.newest.verdict.train_steps) == ("OSError: gone (unexpected)", 2)


def test_json_has_the_same(sick: Path) -> None:
    found = json.loads(look_json(look_at(open_run(sick))))
    assert found["loss"] == {"step": 19, "value": pytest.approx(0.1)}
    assert (found["train_steps"], found["planned_train_steps"], found["seconds_left"]) == (20, 40, None)
    assert [each["rule"] for each in found["findings"]] == ["ExplodingGradient", "DeadRelu"]
    assert found["phases"] == pytest.approx({"data": 0.25, "forward": 0.75})


def test_a_line_keeps_its_extremes_and_marks_what_is_not_finite() -> None:
    flat = braille_line(np.full(100, 3.0), 10, 2)
    assert (flat.low, flat.high, flat.logarithmic) == (3.0, 3.0, False)
    rising = braille_line(np.arange(8.0), 4, 2)
    assert rising.lines == ["⠀⠀⡠⠊", "⡠⠊⠀⠀"]
    assert (rising.low, rising.high) == (0.0, 7.0)
    broken = braille_line(np.array([1.0, 1.0, np.nan, np.nan]), 2, 1)
    assert broken.lines[0][1] == "x"
    assert braille_line(np.array([1e-3, 1.0, 1e5]), 2, 2).logarithmic
    assert braille_line(np.full(3, np.nan), 2, 2).lines == ["⠀⠀", "xx"]
    assert braille_line(np.empty(0), 2, 1).lines == ["⠀⠀"]
