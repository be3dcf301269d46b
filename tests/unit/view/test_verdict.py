"""The verdict for the terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from watchglass.diagnose.crash import with_crash
from watchglass.records import ExaminedSteps, Failure, RuleStatus, Severity, Status, Verdict
from watchglass.view import (
    Judged,
    Terms,
    duration,
    explain_verdict,
    headline,
    markdown_document,
    tone,
    verdict_text,
)
from watchglass.view.text import percent
from watchglass.view.verdict_sentences import chain, closing, since, symptoms_in_words


def test_a_sick_run_in_a_screen(sick_verdict: Verdict) -> None:
    """What was found, the cause, its proof, what to try, the other symptoms by step, and where the rest is."""
    quiet = tuple(f for f in sick_verdict.findings if f.severity is not Severity.INFO)
    broken = replace(quiet[0], message="gradient/fc1.weight holds NaN")
    headline = "The learning rate is too high: gradient/fc1.weight holds NaN"
    diagnosis = replace(sick_verdict.diagnoses[0], subject="fc1.weight", headline=headline)
    assert verdict_text(replace(sick_verdict, diagnoses=(diagnosis,), findings=(broken, quiet[1]))) == (
        "stopped: 1 error, 1 warning, one cause: the learning rate is too high (83 %), since step 30, first\n"
        "in fc1.weight\n"
        "   because  gradient/fc1.weight holds NaN (ExplodingTensor)\n"
        "   try      Lower the learning rate by a factor of 10\n"
        "   also     ExplodingGradient at step 30\n"
        "stopped after 60 of 400 training steps in 6.6 s: 340 steps not run, about 37 s saved; validation\n"
        "accuracy 0.2051\n"
        "1 rule could not be evaluated (WeightUpdateRatio); why: watchglass check -v runs/sick\n"
        "3 raw tensors dropped: the disk or the machine was too slow\n"
        "evidence: watchglass explain runs/sick\n"
        "page: watchglass report runs/sick\n"
    )


def test_a_cause_that_is_not_likely_is_not_stated_as_one(sick_verdict: Verdict) -> None:
    diagnosis = replace(sick_verdict.diagnoses[0], subject="fc1", headline="cause unclear: the loss rises")
    lines = verdict_text(replace(sick_verdict, diagnoses=(diagnosis,)), width=200).splitlines()
    assert lines[:3] == [
        "stopped: 1 error, 1 warning, 1 info, since step 30, first in fc1",
        "   seen     cause unclear: the loss rises",
        "   likely   the learning rate is too high (83 %, from step 30 on); the data holds NaN (12 %, from step 45 on)",
    ]


def test_another_cause_that_is_likely_too_is_stated_beside_the_first(sick_verdict: Verdict) -> None:
    (one,) = sick_verdict.diagnoses
    first, second = one.causes
    for score, rows in ((0.5, ["   or       the data holds NaN (50 %, from step 45 on)"]), (0.49, [])):
        causes = (first, replace(second, score=score))
        stated = replace(one, headline="The learning rate is too high: it diverges", causes=causes)
        lines = verdict_text(replace(sick_verdict, diagnoses=(stated,)), width=200).splitlines()
        assert [line for line in lines if line.startswith("   or ")] == rows


def test_several_diagnoses_are_numbered_and_the_last_of_many_are_counted(sick_verdict: Verdict) -> None:
    (one,) = sick_verdict.diagnoses
    stated = replace(one, subject="fc1", headline="The learning rate is too high: it diverges")
    lines = verdict_text(replace(sick_verdict, diagnoses=(stated,) * 8), width=200).splitlines()
    assert lines[0] == "stopped: 1 error, 1 warning, 1 info, 8 diagnoses"
    assert lines[1] == "1. the learning rate is too high (83 %), since step 30, first in fc1"
    assert [line for line in lines if line[:2] in ("5.", "6.", "7.")] == [
        "5. The learning rate is too high: it diverges", "6. The learning rate is too high: it diverges"
    ]  # fmt: skip
    assert "and 2 further diagnoses" in lines


def test_steps_that_wait_for_data_have_a_cure(healthy_verdict: Verdict) -> None:
    def lines(waits: float, *rules: str) -> list[str]:
        statuses = tuple(replace(healthy_verdict.statuses[0], rule=rule) for rule in rules)
        slow = replace(healthy_verdict, capture={"phases": {"data": waits}}, statuses=statuses)
        return verdict_text(slow, width=200).splitlines()

    said = "no issues found in 400 steps: validation accuracy 0.9812"
    cure = [
        "why steps wait, and more: watchglass check runs/healthy --rules system",
        "page: watchglass report runs/healthy",
    ]
    more = "more: watchglass check runs/healthy -v · watchglass report runs/healthy"
    waits = "38 % of a typical training step is a wait for data"
    assert lines(0.38, "DeadRelu") == [f"{said}; {waits}. runs/healthy", *cure]
    assert lines(0.38, "DeadRelu", "InputBound") == [f"{said}; {waits}. runs/healthy", more]
    assert lines(0.01, "DeadRelu") == [f"{said}. runs/healthy", more]


def test_a_healthy_run_is_shown_in_two_lines(healthy_verdict: Verdict) -> None:
    seen = replace(healthy_verdict, examined=ExaminedSteps(24, 0, 8), metrics={"loss": 0.476})
    assert verdict_text(seen) == (
        "no issues found in 400 steps (24 examined): loss 0.476. runs/healthy\n"
        "more: watchglass check runs/healthy -v · watchglass report runs/healthy\n"
    )


@pytest.mark.parametrize(
    ("status", "unjudged"),
    [("not judged", "no rule had data"), ("no data", ""), ("damaged", ""), ("incomplete", ""), ("unreadable", "")],
)
def test_a_run_without_an_answer_is_never_without_issues(healthy_verdict: Verdict, status: str, unjudged: str) -> None:
    text = verdict_text(replace(healthy_verdict, status=status, unjudged=unjudged))
    assert text.startswith(status)
    assert "no issues" not in text
    assert unjudged in text


def test_a_run_that_mostly_waits_for_data_is_not_simply_called_healthy(healthy_verdict: Verdict) -> None:
    slow = replace(healthy_verdict, capture={"phases": {"data": 0.67}})
    assert verdict_text(slow) == (
        "67 % of a typical training step is a wait for data; otherwise no issues found in 400 steps:\n"
        "validation accuracy 0.9812. runs/healthy\n"
        "why steps wait, and more: watchglass check runs/healthy --rules system\n"
        "page: watchglass report runs/healthy\n"
    )
    assert (tone(slow), tone(replace(slow, capture={"phases": {"data": 0.4}}))) == ("warning", "")


def test_cost_counts_and_reasons_are_shown_on_request(sick_verdict: Verdict) -> None:
    assert verdict_text(sick_verdict, verbose=True).splitlines()[-9:] == [
        "validation accuracy 0.2051",
        "stopped after 60 of 400 training steps in 6.6 s: 340 steps not run, about 37 s saved",
        "WeightUpdateRatio could not be evaluated: updates were captured every 128 steps, it needs 16",
        "2 rules evaluated, 1 of them not applicable here",
        "capture cost at most 55 ms of 6.6 s (0.83 %)",
        "statistics every 8 steps, 2.5 MB written",
        "3 raw tensors dropped: the disk or the machine was too slow",
        "evidence: watchglass explain runs/sick",
        "page: watchglass report runs/sick",
    ]


def test_a_place_that_is_a_number_is_a_module_with_its_class(sick_verdict: Verdict) -> None:
    (diagnosis,) = sick_verdict.diagnoses
    known, *others = [each for each in sick_verdict.findings if each.id in diagnosis.findings]
    for module, words in (("5", "module 5 (Linear)"), ("net.5", "net.5 (Linear)"), ("net.fc", "net.fc")):
        typed = replace(known, evidence={"module": module, "module_type": "Linear"})
        placed = replace(sick_verdict, diagnoses=(replace(diagnosis, subject=module),), findings=(typed, *others))
        assert f", first in {words}\n" in verdict_text(placed, width=1_000)


def test_a_crash_of_a_worker_of_a_loader_is_said_once(healthy_verdict: Verdict) -> None:
    message = "Caught ValueError in DataLoader worker process 0: ValueError: bad"
    failure = Failure("exception", "ValueError", message, "train.py", 12, "for x in loader:", exit_status=1)
    crashed = replace(healthy_verdict, status="failed", failure=failure, diagnoses=with_crash((), failure, 7))
    text = verdict_text(crashed, width=1_000)
    assert text.count("ValueError: bad") == 1
    assert text.count("in a worker of the data loader") == 1


def test_many_rules_without_data_are_one_line(healthy_verdict: Verdict) -> None:
    starved = tuple(RuleStatus(f"Rule{n}", Status.STARVED, "gradients never came") for n in range(12))
    failed = RuleStatus("Mine", Status.ERROR, "raised at TRAIN step 0")
    text = verdict_text(replace(healthy_verdict, statuses=(*healthy_verdict.statuses, *starved, failed)), width=200)
    assert text.splitlines()[1:3] == [
        "12 rules could not be evaluated (Rule0, Rule1, Rule2, Rule3 and 8 more); why: "
        "watchglass check -v runs/healthy",
        "1 rule failed (Mine); why: watchglass check -v runs/healthy",
    ]


def test_long_headlines_hang_behind_their_number(sick_verdict: Verdict) -> None:
    long = replace(sick_verdict.diagnoses[0], headline="it " + "diverges and " * 9 + "ends")
    lines = verdict_text(replace(sick_verdict, diagnoses=(long, long)), width=80).splitlines()
    assert lines[1].startswith("1. it diverges")
    assert lines[2].startswith("   and diverges")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""), ({"status": "no data"}, "warning"), ({"status": "unreadable"}, "warning"),
        ({"status": "incomplete"}, "warning"), ({"status": "damaged", "records_missing": True}, "warning"),
        ({"statuses": (RuleStatus("Mine", Status.ERROR, "raised"),)}, "warning"),
        ({"statuses": (RuleStatus("Mine", Status.STARVED, "no data"),)}, ""),
    ],
)  # fmt: skip
def test_what_is_no_answer_does_not_look_healthy(
    healthy_verdict: Verdict, changes: dict[str, Any], expected: str
) -> None:
    assert tone(replace(healthy_verdict, **changes)) == expected


def test_the_worst_finding_gives_the_tone(sick_verdict: Verdict) -> None:
    assert tone(sick_verdict) == "error"
    assert tone(replace(sick_verdict, findings=sick_verdict.findings[2:])) == "info"


def test_a_rule_that_failed_is_in_the_headline(healthy_verdict: Verdict) -> None:
    failed = (*healthy_verdict.statuses, RuleStatus("Mine", Status.ERROR, "raised at TRAIN step 0"))
    assert headline(replace(healthy_verdict, statuses=failed)) == "no issues found: 1 rule failed"


def test_nothing_in_a_name_steers_the_terminal(sick_verdict: Verdict) -> None:
    diagnosis = replace(sick_verdict.diagnoses[0], subject="fc\x1b[31m\n[red]x", headline="a\rb\x07")
    text = verdict_text(replace(sick_verdict, diagnoses=(diagnosis,)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "fc\\x1b[31m [red]x" in text


def test_findings_outside_of_every_diagnosis_are_reported(sick_verdict: Verdict) -> None:
    text = verdict_text(replace(sick_verdict, diagnoses=()))
    assert "error    step 45: ExplodingTensor" in text
    assert "info     step 3: Overfit: validation loss rises" in text


def test_what_several_workers_saw_alike_is_said_once(sick_verdict: Verdict) -> None:
    growth = sick_verdict.findings[1]
    twins = (growth, replace(growth, id="other", worker="worker_1"))
    (said,) = chain(twins)
    assert said.endswith("within 16 steps (30 times until step 59; on 2 workers)")
    assert len(chain((growth, replace(growth, step=31)))) == 2


def test_what_several_models_show_alike_is_said_once(sick_verdict: Verdict) -> None:
    """As each fold of a cross-validation does; their numbers differ. What only states numbers is said of each."""
    first = replace(sick_verdict.findings[1], evidence={"subject": "waits for data"})
    folds = [replace(first, id=f"fold {n}", model=n, step=30 + 100 * n, message=f"{n} %") for n in (1, 2)]
    (said,) = chain((first, *folds))
    assert said.startswith("step 30: ")
    assert said.endswith("(30 times until step 59; also in model_2 and model_3, from step 130 on)")
    for changed in ({"evidence": {"subject": "copies"}}, {"evidence": {}}, {"rule": "Other"}):
        assert len(chain((first, replace(folds[0], **changed)))) == 2
    assert len(chain([replace(each, severity=Severity.INFO) for each in (first, *folds)])) == 3


def test_what_another_worker_saw_alone_names_it(sick_verdict: Verdict) -> None:
    growth = sick_verdict.findings[1]
    for worker, note in {"worker_1": "; on worker_1)", "worker_0": "step 59)", "": "step 59)"}.items():
        (said,) = chain((replace(growth, worker=worker),))
        assert said.endswith(note)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "340 steps not run, about 37 s saved"),
        ({"price_per_hour": 32.77, "cost_saved": 39.2, "seconds_saved": 4306.0, "steps_saved": 3640},
         "3,640 steps not run, about 1 h 12 min and 39.20 saved (at 32.77 per hour)"),
        ({"price_per_hour": 0.5, "cost_saved": 0.00519}, "about 37 s and 0.0052 saved (at 0.50 per hour)"),
        ({"price_per_hour": 0.0, "cost_saved": 0.0}, "about 37 s and 0.00 saved"),
        ({"steps_saved": 1}, "1 step not run"),
        ({"steps_saved": 0, "seconds_saved": 0.0, "price_per_hour": 2.0, "cost_saved": 0.0},
         "nothing saved: all planned steps had run"),
        ({"steps_saved": None, "seconds_saved": None, "planned_train_steps": None},
         "savings unknown: pass --planned-steps N"),
    ],
)  # fmt: skip
def test_what_a_stop_has_saved(sick_verdict: Verdict, changes: dict[str, Any], said: str) -> None:
    (line,) = [line for line in closing(replace(sick_verdict, **changes)) if line.startswith("stopped after 60")]
    assert said in line


def test_what_few_steps_show_of_the_time_saved_is_called_rough(sick_verdict: Verdict) -> None:
    few = replace(sick_verdict, train_steps=9, price_per_hour=2.0, cost_saved=0.02)
    (line,) = [line for line in closing(few) if line.startswith("stopped after 9")]
    assert line.endswith(
        "340 steps not run, very roughly 37 s and 0.02 saved, estimated from 9 steps (at 2.00 per hour)"
    )
    assert "very roughly" not in " ".join(closing(replace(few, train_steps=20)))


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
        (("worker_0", "worker_1", "worker_2", "worker_²"),
         "step 30 on 4 workers (worker_0, worker_1, worker_2 and 1 more)"),
    ],
)  # fmt: skip
def test_the_workers_of_a_disease_are_named(sick_verdict: Verdict, workers: tuple[str, ...], said: str) -> None:
    diagnosis = replace(sick_verdict.diagnoses[0], workers=workers)
    assert since(diagnosis, sick_verdict) == said


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1.0, "100 %"), (0.9996, "over 99 %"), (0.994, "99 %"), (0.5, "50 %"), (0.004, "under 1 %"), (0.0, "0 %")],
)
def test_nothing_short_of_certainty_is_certain(ratio: float, said: str) -> None:
    assert percent(ratio) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0.0 s"), (2.6e-7, "0.00026 ms"), (2.64e-4, "0.26 ms"), (9.6e-4, "1 ms"),
     (0.0124, "12 ms"), (0.0994, "99 ms"), (0.0996, "0.1 s"), (9.94, "9.9 s"), (9.96, "10 s"),
     (250.0, "4 min 10 s"), (12_000.0, "3 h 20 min"), (float("nan"), "unknown time"), (-1.0, "unknown time")],
)  # fmt: skip
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_what_was_found_in_an_earlier_attempt_is_marked_as_that(sick_verdict: Verdict) -> None:
    assert "attempt" not in verdict_text(sick_verdict)
    again = replace(sick_verdict, status="issues found", attempt=1)
    assert headline(again) == "issues found: 1 error, 1 warning, 1 info (all of them in earlier attempts)"
    assert "since step 30, in attempt 0" in " ".join(verdict_text(again).split())
    assert "step 30, in attempt 0" in markdown_document(Judged([again], Terms()))
    assert "step 30, in attempt 0" in [row.text for row in explain_verdict(again)]
    broken, *rest = again.findings
    both = replace(again, findings=(replace(broken, attempt=1), *rest))
    assert headline(both).endswith("(2 of them in earlier attempts)")


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (None, ""),
        (ExaminedSteps(0), " (no tensors examined)"),
        (ExaminedSteps(60, 0, 60), " (tensors examined at all of them)"),
        (ExaminedSteps(54, 0, 32), " (tensors examined at steps 0 to 31 and 22 more)"),
        (ExaminedSteps(3, 5, 6), " (tensors examined at step 5 and 2 more)"),
        (ExaminedSteps(8, 0, 8), " (tensors examined at steps 0 to 7)"),
        (ExaminedSteps(40), " (tensors examined at 40 of them)"),
    ],
)
def test_the_length_says_which_steps_were_examined(
    sick_verdict: Verdict, seen: ExaminedSteps | None, said: str
) -> None:
    found = replace(sick_verdict, status="issues found", examined=seen)
    shown = " ".join(verdict_text(found, verbose=True).split())
    assert f"60 of 400 training steps in 6.6 s{said}" in shown
    stopped = replace(sick_verdict, examined=seen)
    assert f"stopped after 60 of 400 training steps in 6.6 s{said}: 340 steps not run" in " ".join(
        verdict_text(stopped, verbose=True).split()
    )


def test_symptoms_of_one_rule_are_named_once(sick_verdict: Verdict) -> None:
    finding = sick_verdict.findings[0]
    findings = [replace(finding, id=f"{n}", step=step, message="m") for n, step in enumerate((9, 4, 12, 30, 9))]
    other = replace(finding, id="x", rule="Overfit", step=7, message="m")
    said = f"{finding.rule} at steps 4, 9, 12 and 1 more; Overfit at step 7"
    assert symptoms_in_words([*findings, other], "above") == said
