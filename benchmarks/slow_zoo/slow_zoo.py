"""Train the slow programs and their fast twins, and print for each the bottleneck that watchglass names first.

python benchmarks/slow_zoo/slow_zoo.py                 all of them
python benchmarks/slow_zoo/slow_zoo.py --write         all of them, and write docs/slow-programs.md
python benchmarks/slow_zoo/slow_zoo.py kept_graphs     some of them
python benchmarks/slow_zoo/slow_zoo.py --kept          judges the runs that are there, and trains nothing
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slow_members import MEMBERS, Member
from watchglass import open_run
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.rules import expand, parse_rules

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RULES = "default,system"
_LONGEST_S = 300
_PAGE = """\
# Slow programs

Thirteen training programs with one bottleneck each, and a fast twin of each: whether the rules of the set `system` name
the right bottleneck first, and nothing in the twin. Each program ran once under
`watchglass run --rules default,system`, on {cores} cores, at commit `{commit}`. Findings of severity `info` do not
count. The authors of the rules wrote these programs, so this page shows that each bottleneck is recognised; it measures
no rate. `python benchmarks/slow_zoo/slow_zoo.py --write` makes this page
([programs](../benchmarks/slow_zoo/README.md)). Numeric faults are on the [scoreboard](scoreboard.md).

{summary}

{table}
## What each verdict says

{verdicts}"""


@dataclass(frozen=True)
class Judgement:
    """What watchglass says of a run.

    Attributes:
        causes: The first cause of each diagnosis, in the order in which a person reads them.
        message: The sentence of the first diagnosis; "" for none.
    """

    causes: tuple[str, ...]
    message: str = ""


@dataclass(frozen=True)
class Result:
    """A program and its twin."""

    member: Member
    slow: Judgement
    fast: Judgement

    @property
    def right(self) -> bool:
        """Whether the first cause of the slow program is right."""
        return bool(self.slow.causes) and self.slow.causes[0] in self.member.causes


def train(member: Member, folder: Path, *, slow: bool, kept: bool = False) -> Path:
    """Train a program or its twin under ``watchglass run``; returns the run.

    Args:
        member: The program.
        folder: Where its run is written.
        slow: Whether to train the program itself, and not its twin.
        kept: Return the run that is there.
    """
    which = "slow" if slow else "fast"
    run = folder / f"{member.name}-{which}"
    if kept:
        return run
    shutil.rmtree(run, ignore_errors=True)
    script = HERE / "programs" / f"{member.name}.py"
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(member.ranks)]
    command = [
        sys.executable, *(ranks if member.ranks > 1 else []), "-m", "watchglass", "run", "--run-dir", str(run),
        "--rules", RULES, *member.options, str(script), which,
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    # A report that is still being written would slow the next program.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LONGEST_S, check=False
    )
    if done.returncode:
        sys.exit(f"{member.name} ({which}) ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return run


def judge(run: Path, member: Member) -> Judgement:
    """The diagnoses of a run, by the rules that its evaluator had; findings of severity ``info`` do not count."""
    named = [value for option, value in zip(member.options, member.options[1:], strict=False) if option == "--rules"]
    evaluation = replay(str(run), expand(parse_rules([RULES, *named])))
    diagnoses = verdict(open_run(run), evaluation).diagnoses
    causes = tuple(each.causes[0].cause.id if each.causes else "unclear" for each in diagnoses)
    return Judgement(causes, diagnoses[0].headline if diagnoses else "")


def rows(results: Sequence[Result]) -> Iterable[tuple[str, ...]]:
    """The rows of the table: program, what is named first, whether that is right, what its twin gets."""
    known = {each.member: each for each in results}
    for member in MEMBERS:
        result = known.get(member)
        if member.needs_gpu:
            yield member.slow, "-", "not run: needs a GPU", "-"
        elif result is not None:
            twin = "silent" if not result.fast.causes else ", ".join(result.fast.causes)
            yield member.slow, result.slow.causes[0] if result.slow.causes else "nothing", _yes(result.right), twin


def summary(results: Sequence[Result]) -> str:
    """The result in one sentence."""
    right, silent = sum(each.right for each in results), sum(not each.fast.causes for each in results)
    gpu = sum(bool(member.needs_gpu) for member in MEMBERS)
    return (
        f"The right bottleneck came first in {right} of {len(results)} slow programs, and {silent} of {len(results)} "
        f"fast twins got no diagnosis. Of the {len(MEMBERS)} programs, {gpu} cannot run without a GPU."
    )


def _yes(right: bool) -> str:
    return "yes" if right else "no"


def table(results: Sequence[Result]) -> str:
    """The table in Markdown."""
    head = ("slow program", "named first", "right", "fast twin")
    lines = [head, ("---",) * len(head), *rows(results)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def page(results: Sequence[Result]) -> str:
    """The page of the documentation."""
    describe = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    verdicts = "".join(f"- **{each.member.slow}**: {each.slow.message or 'nothing'}\n" for each in results)
    cores = len(os.sched_getaffinity(0))
    return _PAGE.format(cores=cores, commit=commit, summary=summary(results), table=table(results), verdicts=verdicts)


def main() -> None:
    """Train, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs; all where none is named")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "slow_zoo", help="where the runs are written")
    parser.add_argument("--kept", action="store_true", help="judge the runs that are there, and train nothing")
    parser.add_argument("--write", action="store_true", help="write docs/slow-programs.md; for all programs")
    given = parser.parse_args()
    unknown = set(given.names) - {member.name for member in MEMBERS}
    if unknown:
        parser.error(f"there is no program {', '.join(sorted(unknown))}")
    if given.write and (given.names or given.kept):
        parser.error("--write is for all programs, trained now")
    results = []
    for member in MEMBERS:
        if member.needs_gpu or (given.names and member.name not in given.names):
            continue
        slow, fast = (
            judge(train(member, given.folder, slow=which, kept=given.kept), member) for which in (True, False)
        )
        results.append(Result(member, slow, fast))
        print(f"{member.name}: {', '.join(slow.causes) or 'nothing'}; twin: {', '.join(fast.causes) or 'silent'}")
        print(f"    {slow.message}", flush=True)
    print(f"\n{table(results)}\n{summary(results)}")
    if given.write:
        (ROOT / "docs" / "slow-programs.md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
