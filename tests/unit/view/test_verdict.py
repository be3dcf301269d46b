"""The verdict for the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from watchglass.records import Severity, Verdict
from watchglass.view import verdict_panel, verdict_text
from watchglass.view.verdict import chain


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
        "   cause    the learning rate is too high (83 %)\n"
        "            Each update overshoots.\n"
        "   or       the data holds NaN (12 %)\n"
        "   chain    step 30: ExplodingGradient: the gradient norm grew 100-fold within 16 steps (30 times\n"
        "            until step 59)\n"
        "            step 45: ExplodingTensor: gradient/fc1.weight holds NaN (15 times until step 59)\n"
        "   try      Lower the learning rate by a factor of 10\n"
        "            Clip the gradient norm\n"
        "\n"
        "validation accuracy 0.2051\n"
        "stopped after 60 of 400 training steps in 6.6 s; about 37 s of training time saved\n"
        "WeightUpdateRatio could not be evaluated: updates were captured every 128 steps, it needs 16\n"
        "2 rules evaluated, 1 of them not applicable here\n"
        "watching took at most 0.83 % of the steps' 6.6 s\n"
        "statistics every 8 steps, 2.5 MB written\n"
        "3 raw tensors dropped, for the disk or the machine was too slow\n"
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
