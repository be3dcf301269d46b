"""Verdicts for programs: JSON as its schema says, SARIF as the standard says, XML that parses, Markdown that holds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from markdown_it import MarkdownIt

from sarif_structure import sarif_of
from watchglass.records import (
    Cause,
    Diagnosis,
    Finding,
    Mode,
    RankedCause,
    RuleStatus,
    Severity,
    Status,
    Verdict,
)
from watchglass.view import (
    Judged,
    RuleText,
    Terms,
    json_document,
    json_schema,
    junit_document,
    markdown_document,
    outcome,
    sarif_document,
)

TERMS = Terms()
#: A name that ends a cell, a tag, a string, a link, a table, an XML document, and calls somebody.
HOSTILE = (
    "a|b`c`<b>x</b></td></details>]]>&amp;\"'\x00\x1b[31m\u2028\n\n# h\n@octocat #12 [x](http://e.vil) ![i](j) $m$ {0}"
    " \ud800"
)


def finding(number: int = 0, *, name: str = "fc1.weight", severity: Severity = Severity.ERROR, **more: Any) -> Finding:
    return replace(
        Finding(
            id=f"{number:012x}", rule="ExplodingTensor", severity=severity, step=80 + number, last_step=119, count=40,
            mode=Mode.TRAIN, worker="worker_0", tensors=(name,), value=float("nan"), limit=None,
            message=f"{name} became NaN", causes=("learning_rate_too_high",), what_to_try=("Lower it",),
        ),
        **more,
    )  # fmt: skip


def verdict(
    *findings: Finding, run: str = "runs/mine", name: str = "fc1.weight", status: str = "", **more: Any
) -> Verdict:
    cause = Cause("learning_rate_too_high", "the learning rate is too high", f"because of {name}", ("Lower it",))
    ranked = RankedCause(cause, 0.91, 80, (f"step 80: {name}",), ("nothing",))
    diagnosis = Diagnosis(
        (ranked,), tuple(each.id for each in findings), Severity.ERROR, 80, name, f"It broke in {name}", ("Lower it",)
    )
    statuses = (
        RuleStatus("ExplodingTensor", Status.ISSUES_FOUND if findings else Status.NO_ISSUES_FOUND),
        RuleStatus("Overfit", Status.NOT_APPLICABLE, "there was no evaluation"),
        RuleStatus("DeadRelu", Status.STARVED, f"no outputs of {name}"),
    )
    known = {"status": status or ("issues found" if findings else "no issues found"), "train_steps": 120, **more}
    return Verdict(
        run=run, diagnoses=(diagnosis,) if findings else (), findings=findings,
        **{"statuses": statuses, **known},
    )  # fmt: skip


HEALTHY = verdict()
SICK = verdict(finding(), finding(1, severity=Severity.WARNING), finding(2, severity=Severity.INFO))
STOPPED = replace(
    SICK, status="stopped", planned_train_steps=1000, steps_saved=880, seconds_saved=12.5, cost_saved=3.2,
    price_per_hour=2.0, metrics={"training loss": float("inf")}, script="train.py", capture={"train_ns": float("nan")},
)  # fmt: skip
EMPTY = Verdict("runs/empty", "no data", (), (), ())
DAMAGED = verdict(status="damaged", problems=("segment 3 at byte 8: damaged",), records_missing=True)
FAILED = verdict(statuses=(RuleStatus("Mine", Status.ERROR, "raised at TRAIN step 0"),))
NASTY = verdict(finding(name=HOSTILE), name=HOSTILE, run=f"runs/{HOSTILE}", problems=(HOSTILE,), script=f"{HOSTILE}.py")
ALL = {
    "healthy": HEALTHY, "sick": SICK, "stopped": STOPPED, "empty": EMPTY, "damaged": DAMAGED, "failed": FAILED,
    "nasty": NASTY,
}  # fmt: skip
each_verdict = pytest.mark.parametrize("case", ALL.values(), ids=ALL.keys())


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    found = json.loads(json_schema())
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


# JSON


@each_verdict
def test_json_is_what_the_schema_says(case: Verdict, schema: jsonschema.Draft202012Validator) -> None:
    found = json.loads(json_document(Judged([case], TERMS)), parse_constant=pytest.fail)
    assert list(schema.iter_errors(found)) == []


def test_json_of_many_runs_is_what_the_schema_says(schema: jsonschema.Draft202012Validator) -> None:
    found = json.loads(json_document(Judged(list(ALL.values()), TERMS, many=True)))
    assert list(schema.iter_errors(found)) == []
    assert [each["outcome"] for each in found["runs"]] == [
        "clean", "findings", "findings", "no answer", "no answer", "no answer", "findings",
    ]  # fmt: skip


def test_the_schema_refuses_what_it_does_not_know_and_misses_what_it_does(
    schema: jsonschema.Draft202012Validator,
) -> None:
    found = json.loads(json_document(Judged([STOPPED], TERMS)))
    diagnosis = found["diagnoses"][0]
    for place in (found, found["findings"][0], diagnosis, diagnosis["causes"][0], found["saved"]):
        place["novelty"] = 1
        assert not schema.is_valid(found)
        del place["novelty"]
        for key in list(place):
            value = place.pop(key)
            assert not schema.is_valid(found), key
            place[key] = value
    assert schema.is_valid(found)


def test_every_part_of_the_schema_is_written(schema: jsonschema.Draft202012Validator) -> None:
    """A key of the schema that no output has would be a false promise."""
    found = json.loads(json_document(Judged([STOPPED], TERMS)))
    parts = schema.schema["$defs"]
    shown = {
        "verdict": found, "diagnosis": found["diagnoses"][0], "cause": found["diagnoses"][0]["causes"][0],
        "finding": found["findings"][0], "rule": found["rules"][0],
    }  # fmt: skip
    for name, value in shown.items():
        assert set(parts[name]["properties"]) == set(value) - {"$schema", "version"}, name


def test_json_holds_causes_statuses_and_what_was_saved() -> None:
    found = json.loads(json_document(Judged([STOPPED], TERMS)))
    (diagnosis,) = found["diagnoses"]
    (cause,) = diagnosis["causes"]
    assert (cause["id"], cause["score"], cause["evidence"]) == (
        "learning_rate_too_high", 0.91, ["step 80: fc1.weight"],
    )  # fmt: skip
    assert diagnosis["findings"] == [each["id"] for each in found["findings"]]
    assert found["saved"] == {"steps": 880, "seconds": 12.5, "cost": 3.2, "price_per_hour": 2.0}
    assert found["rules"][1] == {
        "rule": "Overfit", "status": "NotApplicable", "reason": "there was no evaluation", "parameters": {}
    }  # fmt: skip
    assert found["metrics"] == {"training loss": "Infinity"}


def test_the_published_schema_is_the_one_that_is_shipped(repository: Path) -> None:
    assert (repository / "docs" / "schemas" / "check-1.json").read_text() == json_schema()


# SARIF


@each_verdict
def test_sarif_is_what_the_standard_says(case: Verdict) -> None:
    log = sarif_of(sarif_document(Judged([case], TERMS, rules=lambda: DOCUMENTED)))
    (run,) = log["runs"]
    assert len(run["results"]) == len(case.findings)
    assert run["invocations"][0]["executionSuccessful"] == (outcome(case, TERMS) != "no answer")


DOCUMENTED = {"ExplodingTensor": RuleText("A value became NaN.", {"Looks at": "losses {x} [y](z)"})}


def test_sarif_has_levels_fingerprints_help_and_the_script_as_location() -> None:
    (run,) = sarif_of(sarif_document(Judged([STOPPED], TERMS, rules=lambda: DOCUMENTED)))["runs"]
    assert [result["level"] for result in run["results"]] == ["error", "warning", "note"]
    first = run["results"][0]
    assert first["fingerprints"] == {"watchglass/finding/v1": f"{0:012x}"}
    assert first["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train.py"
    assert first["properties"]["value"] == "NaN"
    rule = run["tool"]["driver"]["rules"][first["ruleIndex"]]
    assert rule["defaultConfiguration"] == {"level": "error"}
    assert rule["help"]["text"].startswith("A value became NaN.")
    assert "**Looks at**" in rule["help"]["markdown"]


def test_advice_has_the_numbers_of_its_diagnosis() -> None:
    case = verdict_with_advice()
    (run,) = sarif_of(sarif_document(Judged([case], TERMS)))["runs"]
    assert run["results"][0]["message"]["text"].endswith(" Try: Learning rate 50: try 0.05.")
    (suite,) = suites(junit_document(Judged([case], TERMS)))
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "\ntry: Learning rate 50: try 0.05" in str(failure.text)
    own = replace(case, diagnoses=())
    assert "Try: Lower it." in sarif_document(Judged([own], TERMS))


def verdict_with_advice() -> Verdict:
    known = Diagnosis((), (f"{0:012x}",), Severity.ERROR, 80, "", "diverges", ("Learning rate 50: try 0.05",))
    return replace(STOPPED, findings=(finding(),), diagnoses=(known,))


@pytest.mark.parametrize(
    ("run", "script", "uri"),
    [
        ("runs/a b", "", "runs/a%20b/run.json"), ("/abs/run", "", "file:///abs/run/run.json"),
        ("s3://bucket/runs/x/", "", "bucket/runs/x/run.json"), ("runs/x", "src/train.py", "src/train.py"),
        ("runs/x", "./train.py", "train.py"), ("runs/a:b", "", "runs/a%3Ab/run.json"),
    ],
)  # fmt: skip
def test_sarif_places_findings_where_code_scanning_looks(run: str, script: str, uri: str) -> None:
    log = sarif_of(sarif_document(Judged([verdict(finding(), run=run, script=script)], TERMS)))
    location = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == uri


def test_sarif_holds_many_runs_and_the_reasons_of_missing_answers() -> None:
    log = sarif_of(sarif_document(Judged([SICK, replace(DAMAGED, run="runs/other")], TERMS)))
    notes = log["runs"][1]["invocations"][0]["toolExecutionNotifications"]
    assert [note["level"] for note in notes] == ["error", "warning", "note"]
    assert "records are missing" in notes[0]["message"]["text"]
    assert notes[2]["associatedRule"]["id"] == "DeadRelu"


def test_sarif_knows_a_finding_again_in_the_next_run() -> None:
    again = [replace(each, id=f"{99 + number:012x}", step=0) for number, each in enumerate(SICK.findings)]
    log = sarif_of(sarif_document(Judged([SICK, replace(SICK, run="runs/next", findings=tuple(again))], TERMS)))
    first, second = (
        [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]] for run in log["runs"]
    )
    assert first == second
    assert len(set(first)) == len(first)
    assert log["runs"][0]["results"][0]["fingerprints"] != log["runs"][1]["results"][0]["fingerprints"]


def test_sarif_of_very_many_findings_is_cut_and_says_so() -> None:
    log = sarif_of(sarif_document(Judged([verdict(*(finding(number) for number in range(5_003)))], TERMS)))
    assert len(log["runs"][0]["results"]) == 5_000
    assert "3 further findings" in json.dumps(log["runs"][0]["invocations"])


# JUnit


def suites(text: str) -> list[ET.Element]:
    root = ET.fromstring(text)
    assert root.tag == "testsuites"
    for suite in root:
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases)
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(count, "")) == sum(case.find(tag) is not None for case in cases)
        assert all(case.get("classname") == suite.get("name") for case in cases)
        assert all(sum(case.find(tag) is not None for tag in ("failure", "error", "skipped")) <= 1 for case in cases)
    for count in ("tests", "failures", "errors", "skipped"):
        assert int(root.get(count, "")) == sum(int(suite.get(count, "")) for suite in root)
    return list(root)


@each_verdict
def test_junit_passes_exactly_where_check_exits_with_0(case: Verdict) -> None:
    (suite,) = suites(junit_document(Judged([case], TERMS)))
    passes = suite.get("failures") == suite.get("errors") == "0"
    assert passes == (outcome(case, TERMS) == "clean")


def test_junit_has_a_case_for_each_rule() -> None:
    (suite,) = suites(junit_document(Judged([SICK], TERMS)))
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert list(cases) == ["ExplodingTensor", "Overfit", "DeadRelu", "the run is whole"]
    failure = cases["ExplodingTensor"].find("failure")
    assert failure is not None
    assert failure.text is not None
    assert failure.get("message") == "fc1.weight became NaN"
    assert "step 82" in failure.text
    for name, reason in (("Overfit", "there was no evaluation"), ("DeadRelu", "no outputs of")):
        skipped = cases[name].find("skipped")
        assert skipped is not None
        assert reason in skipped.get("message", "")


def test_junit_counts_what_fail_on_counts() -> None:
    warned = verdict(finding(severity=Severity.WARNING))
    for fail_on, failures in (("warning", "1"), ("error", "0"), ("never", "0")):
        (suite,) = suites(junit_document(Judged([warned], Terms(fail_on))))
        assert suite.get("failures") == failures
        (case,) = [case for case in suite.findall("testcase") if case.get("name") == "ExplodingTensor"]
        assert "became NaN" in ET.tostring(case, encoding="unicode")


def test_junit_shows_rules_that_failed_and_records_that_are_missing() -> None:
    failed, damaged = suites(junit_document(Judged([FAILED, DAMAGED], TERMS)))
    (error,) = failed.findall("testcase/error")
    assert error.get("message") == "raised at TRAIN step 0"
    (error,) = damaged.findall("testcase/error")
    assert "records are missing" in error.get("message", "")
    (accepted,) = suites(junit_document(Judged([DAMAGED], Terms(allow_unfinished=True))))
    assert accepted.get("errors") == "0"


# Markdown


class Page(HTMLParser):
    """Tags and text of rendered Markdown; every tag is closed, in order."""

    VOID = ("br", "hr", "img")

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""
        self.cells: list[list[str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.cells[-1][-1] += data


def rendered(text: str) -> Page:
    return Page(MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough").render(text))


@each_verdict
def test_markdown_renders_whole(case: Verdict) -> None:
    page = rendered(markdown_document(Judged([case], TERMS)))
    widths = {len(row) for row in page.cells}
    assert widths <= {3, 5, 6}
    assert set(page.seen) <= {
        "h2", "p", "code", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "ul", "ol", "li",
        "strong", "blockquote", "br",
    }  # fmt: skip


def test_no_name_breaks_out_of_the_markdown_or_calls_people() -> None:
    text = markdown_document(Judged([NASTY], TERMS))
    page = rendered(text)
    shown = page.text.replace("\u200b", "")
    assert "a|b`c`<b>x</b></td></details>]]>&amp;" in shown
    assert not re.search(r"@[A-Za-z0-9]", text)
    assert not re.search(r"#\d", text)
    assert "://" not in text
    assert "\x1b" not in text
    # Neither an escape that shows, nor one that is missing.
    assert "a\\" not in shown
    assert shown.count("a|b`c`<b>x</b>") == text.count("octocat")
    row = next(row for row in page.cells if "error" in row[0] and "It broke" in row[1])
    assert len(row) == 5


@pytest.mark.parametrize("name", ["- x", "+ x", "1. x", "12) x", "===", "---", "* x", "# x", "> x", "1.5 x", "a - x"])
def test_no_name_at_the_beginning_of_a_line_makes_a_list_or_a_heading(name: str) -> None:
    case = verdict(finding(name=name), metrics={name: 1.0})
    page = rendered(markdown_document(Judged([replace(case, diagnoses=())], TERMS)))
    assert f"{name} 1" in page.text.replace("\u200b", "")
    assert page.seen.count("h2") == 1
    assert not {"ul", "ol", "li", "h1", "hr", "blockquote"} & set(page.seen)


def test_no_name_is_a_reference_on_gitlab() -> None:
    text = markdown_document(Judged([verdict(finding(name='!1 ~2 %3 $4 ^5 &6 ~"bug" 83 %'))], TERMS))
    for letter in "!~%$^&":
        assert not re.search(rf"{re.escape(letter)}(amp;)?[\d\"]", text), letter
    assert "83 %" in text


def test_markdown_shows_the_cause_and_what_to_try() -> None:
    page = rendered(markdown_document(Judged([STOPPED], TERMS)))
    assert page.text.startswith("❌ watchglass: stopped: 1 error, 1 warning, 1 info")
    assert ["🔴 error", "It broke in fc1.weight", "step 80", "the learning rate is too high (91 %)", "Lower it"] in [
        [cell.strip() for cell in row] for row in page.cells
    ]


def test_markdown_of_many_runs_has_a_row_for_each() -> None:
    case: Mapping[str, Verdict] = {name: replace(each, run=f"runs/{name}") for name, each in ALL.items()}
    page = rendered(markdown_document(Judged(list(case.values()), TERMS, many=True)))
    marks = {row[1]: row[0].strip() for row in page.cells if row[1].startswith("runs/")}
    assert marks == {
        "runs/healthy": "✅", "runs/sick": "❌", "runs/stopped": "❌", "runs/empty": "⚠️", "runs/damaged": "⚠️",
        "runs/failed": "⚠️", "runs/nasty": "❌",
    }  # fmt: skip


@pytest.mark.parametrize("amount", [1, 60, 200])
def test_markdown_fits_into_a_comment_and_counts_what_it_leaves_out(amount: int) -> None:
    long = "\U0001f600|" * 400
    sick = verdict(*(finding(number, name=f"{number}{long}") for number in range(amount)), name=long)
    runs = [replace(sick, run=f"{number}{long}") for number in range(min(amount, 120))]
    for text in (markdown_document(Judged([sick], TERMS)), markdown_document(Judged(runs, TERMS, many=True))):
        assert len(text.encode("utf-16-le")) // 2 < 65_536
        rendered(text)
        if amount > 1:
            assert re.search(r"and [\d,]+ further|omitted", text)
