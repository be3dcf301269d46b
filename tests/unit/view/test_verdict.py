"""The verdict for the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from watchglass.records import Severity, Verdict
from watchglass.view import verdict_panel, verdict_text
from watchglass.view.text import percent
from watchglass.view.verdict import chain, closing, since


def rendered(verdict: Verdict, width: int = 90) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(verdict_panel(verdict))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def test_plain_text_in_full(sick_verdict: Verdict) -> None:
    subject = "fc1.weight"
    diagnosis = replace(sick_verdict.diagnoses[0], subject=subject)
    quiet = tuple(f for f in sick_verdict.findings if f.severity is not Severity.INFO)
    broken = replace(quiet[0], message="gradient/fc1.weight holds NaN")
    assert verdict_text(replace(sick_verdict, diagnoses=(diagnosis,), findings=(broken, quiet[1]))) == (
        "stopped: 1 error, 1 warning\n"
        "\n"
        "1. training diverges to NaN since step 30, first in conv1\n"
        "   first in fc1.weight\n"
        "   since    step 30\n"
        "   cause    the learning rate is too high (83 %, from step 30 on)\n"
        "            Each update overshoots.\n"
        "   or       the data holds NaN (12 %, from step 45 on)\n"
        "            against it: step 45: the loss rose in the steps before (ExplodingTensor)\n"
        "   chain    step 30: ExplodingGradient: the gradient norm grew 100-fold within 16 steps (30 times\n"
        "            until step 59)\n"
        "            step 45: ExplodingTensor: gradient/fc1.weight holds NaN (15 times until step 59)\n"
        "   try      Lower the learning rate by a factor of 10\n"
        "            Clip the gradient norm\n"
        "\n"
        "validation accuracy 0.2051\n"
        "stopped after 60 of 400 training steps in 6.6 s: 340 steps not run, about 37 s not spent\n"
        "WeightUpdateRatio could not be evaluated: updates were captured every 128 steps, it needs 16\n"
        "2 rules evaluated, 1 of them not applicable here\n"
        "watching took at most 0.83 % of the steps' 6.6 s\n"
        "statistics every 8 steps, 2.5 MB written\n"
        "3 raw tensors dropped, for the disk or the machine was too slow\n"
        "each cause with its evidence: watchglass explain runs/sick\n"
    )


def test_a_healthy_run_is_told_in_three_lines(healthy_verdict: Verdict) -> None:
    assert verdict_text(healthy_verdict) == (
        "no issues found\n\nvalidation accuracy 0.9812\n400 training steps in 1 min 15 s\n2 rules evaluated\n"
    )


def test_the_panel_says_the_same_as_the_text(sick_verdict: Verdict) -> None:
    panel = " ".join(rendered(sick_verdict, 400).replace("│", " ").split())
    for line in verdict_text(sick_verdict, width=10_000).splitlines():
        assert " ".join(line.split()) in panel


def test_nothing_in_a_name_steers_the_terminal(sick_verdict: Verdict) -> None:
    diagnosis = replace(sick_verdict.diagnoses[0], subject="fc\x1b[31m\n[red]x", headline="a\rb\x07")
    text = rendered(replace(sick_verdict, diagnoses=(diagnosis,)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "fc\\x1b[31m [red]x" in text


def test_findings_outside_of_every_diagnosis_are_told(sick_verdict: Verdict) -> None:
    text = verdict_text(replace(sick_verdict, diagnoses=()))
    assert "error    step 45: ExplodingTensor" in text
    assert "info     step 3: Overfit: validation loss rises" in text


def test_what_several_workers_saw_alike_is_said_once(sick_verdict: Verdict) -> None:
    growth = sick_verdict.findings[1]
    twins = (growth, replace(growth, id="other", worker="worker_1"))
    (said,) = chain(twins)
    assert said.endswith("within 16 steps (30 times until step 59; on 2 workers)")
    assert len(chain((growth, replace(growth, step=31)))) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "340 steps not run, about 37 s not spent"),
        ({"price_per_hour": 32.77, "cost_saved": 39.2, "seconds_saved": 4306.0, "steps_saved": 3640},
         "3,640 steps not run, about 1 h 12 min and 39.20 not spent (at 32.77 per hour)"),
        ({"price_per_hour": 0.5, "cost_saved": 0.00519}, "about 37 s and 0.0052 not spent (at 0.50 per hour)"),
        ({"price_per_hour": 0.0, "cost_saved": 0.0}, "about 37 s and 0.00 not spent"),
        ({"steps_saved": 1}, "1 step not run"),
        ({"steps_saved": 0, "seconds_saved": 0.0, "price_per_hour": 2.0, "cost_saved": 0.0},
         "nothing saved, since all planned steps were run"),
        ({"steps_saved": None, "seconds_saved": None, "planned_train_steps": None},
         "how many steps were saved is not known, since how many were planned is not (--planned-steps tells it)"),
    ],
)  # fmt: skip
def test_what_a_stop_has_saved(sick_verdict: Verdict, changes: dict[str, Any], said: str) -> None:
    (line,) = [line for line in closing(replace(sick_verdict, **changes)) if line.startswith("stopped after 60")]
    assert said in line


def test_a_run_that_was_not_stopped_has_saved_nothing_and_says_nothing_of_it(healthy_verdict: Verdict) -> None:
    assert not [line for line in closing(replace(healthy_verdict, price_per_hour=3.0)) if "spent" in line]


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        (("worker_0",), "step 30"),
        (("worker_3",), "step 30 on worker_3"),
        (("worker_0", "worker_2"), "step 30 on worker_0 and worker_2"),
        (("worker_0", "worker_2", "worker_3"), "step 30 on worker_0, worker_2 and worker_3"),
        (tuple(f"worker_{n}" for n in range(12)), "step 30 on 12 workers (worker_0 to worker_11)"),
        (tuple(f"worker_{n}" for n in range(0, 12, 2)),
         "step 30 on 6 workers (worker_0, worker_2, worker_4 and 3 more)"),
    ],
)  # fmt: skip
def test_the_workers_of_a_disease_are_named(sick_verdict: Verdict, workers: tuple[str, ...], said: str) -> None:
    diagnosis = replace(sick_verdict.diagnoses[0], workers=workers)
    assert since(diagnosis, list(sick_verdict.findings)) == said


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1.0, "100 %"), (0.9996, "over 99 %"), (0.994, "99 %"), (0.5, "50 %"), (0.004, "under 1 %"), (0.0, "0 %")],
)
def test_nothing_short_of_certainty_is_certain(ratio: float, said: str) -> None:
    assert percent(ratio) == said
