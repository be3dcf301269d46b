"""The scoreboard as a page: what the rules reach on each half, by class and by rule, beside checks of the loss."""

from __future__ import annotations

import csv
import math
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from figures_of_halves import Figures, Share, agreement, figures
from judging import STRAWMEN, Judged
from members import FRAMEWORKS, HALVES, HERE, ROOT, Member
from watchglass.rules import BUILT_IN, SCOREBOARD_FILE, rule_names

#: Each scoring of the held-out half, for ever: a line each.
LOG = HERE / "held_out_scorings.csv"
_FIELDS = (
    "date", "commit", "seeds", "faulty_runs", "healthy_runs", "recall_warning", "recall_error", "cause_first",
    "cause_in_three", "false_warning", "false_error", "delay",
)  # fmt: skip


def page(judged: Sequence[Judged], dropped: Mapping[Member, str], seeds: int) -> str:
    """The whole page, as Markdown."""
    parts = [_INTRODUCTION.format(seeds="one seed" if seeds == 1 else f"{seeds} seeds", commit=_commit())]
    for framework in FRAMEWORKS:
        for half in HALVES:
            of_half = runs_of(judged, framework, half)
            if of_half:
                which = "" if framework == FRAMEWORKS[0] else f" in {_NAMES[framework]}"
                parts += [f"## The {half} half{which}\n", _summary(of_half), _by_class(of_half), _by_rule(of_half)]
                # Authors of rules do not see the verdict on a single run of the held-out half.
                parts += [_alarms(of_half)] if half == "development" else []
    parts += _side_by_side(judged)
    if dropped:
        rows = [(member.id, member.fault.name if member.fault else "", reason) for member, reason in dropped.items()]
        parts.append("## Programs that do not count\n\nTheir fault does no measurable harm.\n")
        parts.append(_table(("program", "class", "why"), rows))
    return "\n".join(parts)


#: How frameworks are written on the page.
_NAMES = {"pytorch": "PyTorch", "keras": "Keras", "jax": "JAX"}
_INTRODUCTION = """# Scoreboard

Measured recall and false alarms of the default rules with default options, on the training programs of `benchmarks/zoo`
with {seeds} each, at commit `{commit}`. The unit is one run: a program with a seed. Rules were developed on one
half of the fault classes and of the healthy programs; the other half is scored only. Shares have 95 % Wilson intervals.
`python benchmarks/zoo/score.py` makes this page. The targets are older than the rules. What the default rules miss,
and why, is [on the page about rules](rules.md#what-the-default-rules-miss). Slow programs have
[another page](slow-programs.md). The programs are written in PyTorch where no other framework is named.
"""
#: What the figures at `warning`, and the false alarms at `error`, should be.
_TARGETS = (
    (
        "target at `warning`",
        "at least 90 %",
        "at most 5 %",
        "at least 75 %",
        "at least 88 %",
        "at most 10 % of the run",
    ),
    ("target at `error`", "", "at most 2 %", "", "", ""),
)


def runs_of(judged: Iterable[Judged], framework: str, half: str | None = None) -> list[Judged]:
    """The runs of a framework, of one half or of both."""
    return [
        each for each in judged if each.trial.member.framework == framework and half in (None, each.trial.member.half)
    ]


def _side_by_side(judged: Sequence[Judged]) -> list[str]:
    """Each other framework beside the runs of PyTorch that have the same fault classes."""
    rows: list[tuple[object, ...]] = []
    for framework in FRAMEWORKS[1:]:
        for half in HALVES:
            own, reference = runs_of(judged, framework, half), runs_of(judged, FRAMEWORKS[0], half)
            if not own:
                continue
            classes = {each.trial.member.fault.name for each in own if each.trial.member.fault}
            same = [each for each in reference if (fault := each.trial.member.fault) is None or fault.name in classes]
            name = f"{_NAMES[framework]}, {half}"
            for title, runs, agreed in (
                (name, own, agreement(own, reference)),
                ("the same classes in PyTorch", same, "-"),
            ):
                found = figures(runs)
                shares = (found.recall["warning"], found.false_alarms["warning"], found.first, found.three)
                rows.append((title, *shares, agreed))
    heads = ("", "sick runs found", "false alarms", "right cause first", "among three", "verdict as in PyTorch")
    return ["## Frameworks side by side\n", _table(heads, rows)] if rows else []


def _summary(judged: Sequence[Judged]) -> str:
    found = figures(judged)
    rows = [
        _row("watchglass, at `warning`", found, "warning"),
        _row("watchglass, at `error`", found, "error"),
        *_TARGETS,
    ]
    for name, alarm in STRAWMEN.items():
        answers = [(each.trial.member.fault is not None, alarm(each.trial.figures())) for each in judged]
        sick = [answer for faulty, answer in answers if faulty]
        healthy = [answer for faulty, answer in answers if not faulty]
        rows.append((name, Share(sum(sick), len(sick)), Share(sum(healthy), len(healthy)), "-", "-", "-"))
    heads = ("", "sick runs found", "false alarms", "right cause first", "among three", "first right finding")
    return _table(heads, rows)


def _row(name: str, found: Figures, severity: str) -> tuple[object, ...]:
    if severity == "error":
        return (name, found.recall["error"], found.false_alarms["error"], "", "", "")
    delay = "-" if math.isnan(found.delay) else f"{100 * found.delay:.0f} % of the run"
    return (name, found.recall["warning"], found.false_alarms["warning"], found.first, found.three, delay)


def _by_class(judged: Sequence[Judged]) -> str:
    groups: dict[str, list[Judged]] = {}
    for each in judged:
        if each.trial.member.fault:
            groups.setdefault(each.trial.member.fault.name, []).append(each)
    rows = []
    for name, of_class in sorted(groups.items()):
        found = figures(of_class)
        wrong = Counter(each.causes[0] for each in of_class if each.causes and not each.right(1))
        instead = ", ".join(f"{cause} {times}" for cause, times in wrong.most_common(2))
        delay = "-" if math.isnan(found.delay) else f"{100 * found.delay:.0f} %"
        programs = len({each.trial.member for each in of_class})
        rows.append(
            (name, programs, _of(found.recall["warning"]), _of(found.first), _of(found.three), delay, instead or "-")
        )
    heads = ("fault class", "programs", "found", "right first", "among three", "first at", "named instead")
    return "### By fault class\n\n" + _table(heads, rows)


def _by_rule(judged: Sequence[Judged]) -> str:
    sick = sum(each.trial.member.fault is not None for each in judged)
    changed = changed_since_scored()
    rows = [
        (rule, f"{found} of {sick}", Share(alarms, len(judged) - sick), "seen" if rule in changed else "")
        for rule, (found, alarms) in scores_by_rule(judged).items()
    ]
    heads = ("rule", "sick runs with a finding", "healthy runs with a finding", "changed after a held-out scoring")
    return "### By rule\n\n" + _table(heads, rows)


def scores_by_rule(judged: Iterable[Judged]) -> dict[str, tuple[int, int]]:
    """Sick and healthy runs with a finding, by rule: of each default rule, and of others that found something."""
    sick: Counter[str] = Counter()
    healthy: Counter[str] = Counter()
    for each in judged:
        (sick if each.trial.member.fault else healthy).update(each.rules)
    return {rule: (sick[rule], healthy[rule]) for rule in sorted({*rule_names("default"), *sick, *healthy})}


def write_scores(judged: Sequence[Judged], seeds: int, path: Path = SCOREBOARD_FILE) -> None:
    """Write what each rule found to the file that `watchglass rules` and the pages of the rules read."""
    lines = [
        "# What each default rule found in the zoo. Written by benchmarks/zoo/score.py with docs/scoreboard.md.",
        "# found: sick runs with a finding of severity warning or error; alarms: healthy runs with one.",
        f'commit = "{_commit()}"',
        f"seeds = {seeds}",
    ]
    for half in HALVES:
        of_half = [each for each in judged if each.trial.member.half == half]
        sick = sum(each.trial.member.fault is not None for each in of_half)
        lines += ["", f"[halves.{half}]", f"sick = {sick}", f"healthy = {len(of_half) - sick}"]
        lines += ["", f"[halves.{half}.rules]"]
        lines += [
            f"{rule} = {{ found = {found}, alarms = {alarms} }}"
            for rule, (found, alarms) in scores_by_rule(of_half).items()
        ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _alarms(judged: Sequence[Judged]) -> str:
    rows = [
        (
            each.trial.member.id,
            each.trial.seed,
            each.severity,
            ", ".join(each.rules),
            each.causes[0] if each.causes else "-",
        )
        for each in judged
        if each.trial.member.fault is None and each.severity
    ]
    if not rows:
        return "### Alarms on healthy runs\n\nNone.\n"
    return "### Alarms on healthy runs\n\n" + _table(("program", "seed", "severity", "rules", "first cause"), rows)


def verdicts(judged: Sequence[Judged], dropped: Mapping[Member, str]) -> str:
    """The verdict on every run with its findings, as Markdown: what an author of a rule looks at."""
    head = f"# Verdicts on the development half, at commit `{_commit()}`\n"
    kinds: dict[str, list[tuple[object, ...]]] = {"Faulty": [], "Healthy": []}
    for each in judged:
        member = each.trial.member
        right = "first" if each.right(1) else "among three" if each.right(3) else "no"
        kind, given = ("Faulty", (member.fault.name, right)) if member.fault else ("Healthy", ())
        name = f"{member.id}, seed {each.trial.seed}" + (" (does not count)" if member in dropped else "")
        delay = () if kind == "Healthy" else ("-" if math.isnan(each.share) else f"{100 * each.share:.0f} %",)
        causes, rules = ", ".join(each.causes[:4]) or "-", ", ".join(each.rules) or "-"
        kinds[kind].append((name, *given, each.severity or "silent", causes, rules, *delay))
    heads = {
        "Faulty": ("program", "class", "right cause", "severity", "causes", "rules that fired", "first right at"),
        "Healthy": ("program", "severity", "causes", "rules that fired"),
    }
    parts = [head, _summary([each for each in judged if each.trial.member not in dropped])]
    parts += [f"## {kind} runs\n\n{_table(heads[kind], rows)}" for kind, rows in kinds.items()]
    failed = [f"- {each.trial.member.id}, seed {each.trial.seed}: {rule}" for each in judged for rule in each.failed]
    parts.append("## Rules that failed\n\n" + ("\n".join(failed) or "None.") + "\n")
    parts.append("## Findings\n")
    for each in sorted(judged, key=lambda each: each.trial.member.fault is not None):
        member = each.trial.member
        title = f"{member.id}, seed {each.trial.seed}: {member.fault.name if member.fault else 'healthy'}"
        parts += [f"- **{title}**", *(f"  - {finding}" for finding in each.findings)] if each.findings else []
    reasons = [f"- {member.id}: {reason}" for member, reason in dropped.items()]
    parts.append("\n## Programs that do not count\n\n" + ("\n".join(reasons) or "None."))
    return "\n".join(parts) + "\n"


def log_held_out(judged: Iterable[Judged], seeds: int) -> None:
    """Add a line with the figures of the held-out half to the log of its scorings."""
    every = [each for each in judged if each.trial.member.half == "held-out"]
    found = figures(every)
    sick = sum(each.trial.member.fault is not None for each in every)
    values = (
        datetime.now(timezone.utc).date().isoformat(), _commit(), seeds, sick, len(every) - sick,
        *(f"{share.value:.3f}" for share in (
            found.recall["warning"], found.recall["error"], found.first, found.three, found.false_alarms["warning"],
            found.false_alarms["error"],
        )),
        f"{found.delay:.3f}",
    )  # fmt: skip
    new = not LOG.exists()
    with LOG.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        if new:
            writer.writerow(_FIELDS)
        writer.writerow(values)


def changed_since_scored() -> set[str]:
    """Rules whose file has changed since the held-out half was first scored: their figures are no longer blind."""
    if not LOG.exists():
        return set()
    with LOG.open(encoding="utf-8", newline="") as stream:
        first = next(csv.DictReader(stream), None)
    if first is None:
        return set()
    commit = first["commit"].removesuffix("+")
    paths = {*_git("diff", "--name-only", commit, "--", "src/watchglass/rules").splitlines()}
    return {
        name for name, each in BUILT_IN.items() if f"src/watchglass/rules/{each.module.replace('.', '/')}.py" in paths
    }


def _commit() -> str:
    """The commit, with a plus where files have been changed since."""
    return _git("rev-parse", "--short", "HEAD").strip() + ("+" if _git("status", "--porcelain", "src") else "")


def _git(*arguments: str) -> str:
    return subprocess.run(("git", "-C", str(ROOT), *arguments), capture_output=True, text=True, check=True).stdout


def _of(share: Share) -> str:
    return f"{share.hits} of {share.of}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
