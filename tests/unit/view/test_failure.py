"""How a run failed, in words: in the headline of every format, whatever the rules found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from watchglass.records import Fact, Failure, Verdict, facts
from watchglass.view import (
    Judged,
    Terms,
    explain_verdict,
    failure_sentence,
    headline,
    json_document,
    junit_document,
    markdown_document,
    outcome,
    sarif_document,
    tone,
    verdict_text,
)
from watchglass.view.verdict_sentences import closing

BAD = Failure("exception", "ValueError", "bad batch", "train.py", 12, "check(batch)", exit_status=1)


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (BAD, "ValueError: bad batch (train.py:12)"),
        (replace(BAD, message="", file=""), "ValueError"),
        (Failure("exception"), "an exception"),
        (Failure("interrupt", "KeyboardInterrupt", "", "train.py", 3), "interrupted by Ctrl-C (train.py:3)"),
        (Failure("signal", exit_status=137), "ended by SIGKILL"),
        (Failure("signal", exit_status=128 + 99), "ended by signal 99"),
        (Failure("exit", exit_status=3), "the script ended with exit status 3"),
        (
            Failure("exit", "SystemExit", "no data", "a.py", 3, "", 1),
            "the script ended with exit status 1: no data (a.py:3)",
        ),
        (Failure("lost"), "its process ended without reporting why, as a killed process does"),
    ],
)  # fmt: skip
def test_sentences(failure: Failure, sentence: str) -> None:
    assert failure_sentence(failure) == sentence


def test_a_failure_heads_every_format(healthy_verdict: Verdict) -> None:
    failed = replace(healthy_verdict, status="failed", failure=BAD, train_steps=1)
    sentence = "failed after 1 training step: ValueError: bad batch (train.py:12)"
    assert headline(failed).startswith(sentence)
    assert tone(failed) == "error"
    assert "check(batch)" in verdict_text(failed)
    assert [row.text for row in explain_verdict(failed)[:2]] == [headline(failed), "train.py:12: check(batch)"]
    documents = [
        json_document(Judged([failed], Terms())),
        junit_document(Judged([failed], Terms())),
        sarif_document(Judged([failed], Terms())),
    ]
    for document in documents:
        assert sentence in document
        assert "no issues found" not in document
    markdown = markdown_document(Judged([failed], Terms()))
    assert "ValueError: bad batch" in markdown.splitlines()[0]
    assert "<error" in documents[1]
    assert '"executionSuccessful": false' in documents[2]
    assert outcome(failed, Terms()) == "no answer"
    assert outcome(failed, Terms(allow_unfinished=True)) == "clean"


def test_findings_count_beside_a_failure(sick_verdict: Verdict) -> None:
    failed = replace(sick_verdict, status="failed", failure=BAD)
    assert outcome(failed, Terms()) == "findings"
    assert headline(failed).startswith("failed after")
    assert "1 error" in headline(failed)
    assert "<error" in junit_document(Judged([failed], Terms()))


def test_a_run_that_failed_before_its_first_step(healthy_verdict: Verdict) -> None:
    failed = replace(healthy_verdict, status="failed", failure=BAD, train_steps=0)
    assert headline(failed) == "failed before its first step: ValueError: bad batch (train.py:12)"


def test_steps_before_an_interrupt_are_spoken_of_only_if_there_are_any(healthy_verdict: Verdict) -> None:
    interrupted = replace(healthy_verdict, status="failed", failure=Failure("interrupt", "KeyboardInterrupt"))
    assert "the steps before it were recorded" in verdict_text(interrupted)
    assert "recorded" not in verdict_text(replace(interrupted, train_steps=0))


def test_a_line_says_which_workers_of_a_script_that_ended_well_ended_early(healthy_verdict: Verdict) -> None:
    lost = tuple(Failure("lost", worker=f"worker_{rank}") for rank in range(2))
    early = replace(healthy_verdict, ended_early=(*lost, replace(BAD, worker="worker_2")))
    assert headline(early) == headline(healthy_verdict)
    assert outcome(early, Terms()) == "clean"
    end = "the script itself ended with exit status 0"
    assert list(closing(early))[:2] == [
        f"worker_0 and worker_1 ended early, like a terminated process; {end}",
        f"worker_2 ended early, ValueError: bad batch (train.py:12); {end}",
    ]
    assert [each["worker"] for each in json.loads(json_document(Judged([early], Terms())))["ended_early"]] == [
        "worker_0", "worker_1", "worker_2",
    ]  # fmt: skip
    assert "worker_2 ended early" in markdown_document(Judged([early], Terms())).replace("\\", "")


def test_a_line_says_how_many_updates_bypassed_the_hooks_and_why(healthy_verdict: Verdict) -> None:
    past = facts.BypassedUpdates(21, "SGD.step was replaced by a function that calls no hooks", 19, "worker_0")
    verdict = replace(healthy_verdict, bypassed=(past,))
    line = f"bypassed PyTorch's hooks ({past.reason}); recorded from the changed weights, without the learning rate"
    assert f"19 training steps from step 21 on {line}" in closing(verdict)
    killed = replace(verdict, bypassed=(replace(past, steps=None), replace(past, steps=1, worker="worker_1")))
    assert f"training steps from step 21 on of worker_0 {line}" in closing(killed)
    assert f"1 training step from step 21 on of worker_1 {line}" in closing(killed)
    assert json.loads(json_document(Judged([verdict], Terms())))["bypassed"] == [
        {"worker": "worker_0", "since": 21, "steps": 19, "reason": past.reason}
    ]
    assert "19 training steps from step 21 on" in markdown_document(Judged([verdict], Terms()))
    assert past.to_fact("SGD.step").read(facts.BypassedUpdates) == past
    assert Fact("updates_bypassed", -1, "", {"since": "x"}).read(facts.BypassedUpdates) is None


def test_a_run_that_was_not_judged_says_why(healthy_verdict: Verdict) -> None:
    why = "backward ran 360 times and no optimizer stepped"
    verdict = replace(healthy_verdict, status="not judged", unjudged=why, train_steps=1)
    assert headline(verdict) == f"not judged: {why}"
    assert tone(verdict) == "warning"
    assert outcome(verdict, Terms()) == outcome(verdict, Terms(allow_unfinished=True)) == "no answer"
    assert f'"unjudged": "{why}"' in json_document(Judged([verdict], Terms()))
    assert why in junit_document(Judged([verdict], Terms()))
