"""Train the zoo, let the default rules judge every run, and write docs/scoreboard.md.

    python benchmarks/zoo/score.py                       all of it, with three seeds
    python benchmarks/zoo/score.py --half development    what rules are developed on
    python benchmarks/zoo/score.py --framework keras     programs of one framework
    python benchmarks/zoo/score.py --quick               whether the verdicts on a few programs are right
    python benchmarks/zoo/score.py --only digits_mlp     programs of this script; prints only

Runs are kept: a second call trains only programs that have changed, and evaluates the rules of today on all runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from figures_of_halves import harmless
from judging import Judged, judge
from members import FRAMEWORKS, HALVES, ROOT, Member, drawn_halves, fault_classes, members
from running import preloaded, train, trained, trials, write_skills
from scoreboard import log_held_out, page, runs_of, verdicts, write_scores

#: Programs of --quick: what is wrong with the faulty ones must be found, and the healthy ones must be silent.
_QUICK = (
    "autoencoder_digits/variational",
    "breast_cancer_mlp/lbfgs",
    "breast_cancer_mlp/weights_of_1e_5",
    "diabetes_regression/linear",
    "diabetes_regression/plain",
    "diabetes_regression/four_hundred_epochs_on_fifty_patients",
    "digits_cnn/group",
)


def main() -> int:
    """Entry point.

    Returns:
        Exit status: 0, 1 where --quick finds a wrong verdict, or 2 where a program left no figures.
    """
    options = _options()
    if options.draw:
        for name, half in sorted(drawn_halves(fault_classes().values()).items()):
            print(f"{half:12} {name}")
        return 0
    chosen = _chosen(options)
    if not chosen:
        print("score: no program has this half and these names; see benchmarks/zoo/programs", file=sys.stderr)
        return 2
    wanted = trials(chosen, 1 if options.quick else options.seeds, options.runs)
    try:
        if options.kept:
            wanted = trained(wanted)
        else:
            # To import PyTorch takes longer than most programs, but for a few it is not worth another process.
            few = options.quick or all(each.framework != FRAMEWORKS[0] for each in chosen)
            with nullcontext(sys.executable) if few else preloaded() as python:
                kind = {"rules": options.rules, "retrain": options.retrain, "measure": not options.quick}
                train(wanted, options.jobs, python, **kind)
        dropped = {} if options.quick else harmless(wanted)
        # A verdict is printed also where the program does not count.
        judged = judge(wanted, options.jobs, options.rules)
    except RuntimeError as error:
        print(f"score: {error}", file=sys.stderr)
        return 2
    if options.quick:
        return _wrong(judged)
    counted = [each for each in judged if each.trial.member not in dropped]
    if options.verdicts is not None:
        options.verdicts.write_text(verdicts(judged, dropped), encoding="utf-8")
    document = page(counted, dropped, options.seeds)
    print(document)
    if options.only or options.half or options.framework or options.kept or options.rules != "default":
        return 0
    (ROOT / "docs" / "scoreboard.md").write_text(document, encoding="utf-8")
    of_pytorch = runs_of(counted, FRAMEWORKS[0])  # what earlier scorings are compared with
    log_held_out(of_pytorch, options.seeds)
    write_scores(of_pytorch, options.seeds)  # last: a file of the package has then changed since the commit
    write_skills(wanted)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=HALVES, help="score one half only; prints only")
    parser.add_argument("--framework", choices=FRAMEWORKS, help="programs of one framework; prints only")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each program (default: 3)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="scripts, programs (SCRIPT/NAME) or fault classes")
    parser.add_argument("--quick", action="store_true", help="check the verdicts on a few programs, with one seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="programs at a time (default: cores)")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "zoo", help="where runs are kept")
    parser.add_argument("--retrain", action="store_true", help="train again what is kept, after a change of capture")
    parser.add_argument("--kept", action="store_true", help="judge what is kept and train nothing; prints only")
    parser.add_argument(
        "--rules", default="default", metavar="NAMES", help="rules to train with and to judge by, as all; prints only"
    )
    parser.add_argument(
        "--verdicts", type=Path, metavar="FILE", help="write the verdict on every run to FILE; needs --half development"
    )
    parser.add_argument("--draw", action="store_true", help="print the half of each fault class, and end")
    options = parser.parse_args()
    for name in ("seeds", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1 but got {getattr(options, name)}")
    if options.verdicts is not None and options.half != "development":
        parser.error("--verdicts needs --half development: single verdicts of the held-out half stay unread")
    return options


def _chosen(options: argparse.Namespace) -> list[Member]:
    every = [
        member
        for member in members()
        if options.half in (None, member.half) and options.framework in (None, member.framework)
    ]
    if options.only:
        chosen = [
            member
            for member in every
            if {member.id, member.script.stem, member.fault.name if member.fault else ""} & set(options.only)
        ]
        # A faulty program counts by its twin.
        return [member for member in every if member in chosen or any(_is_twin(member, each) for each in chosen)]
    if options.quick:
        return [member for member in every if member.id in _QUICK]
    return every


def _wrong(judged: Sequence[Judged]) -> int:
    """Print the verdict on each program, and say whether one is wrong."""
    wrong = 0
    for each in judged:
        fault = each.trial.member.fault
        right = each.right(1) and each.alarms("warning") if fault else not each.severity
        wanted = f"{' or '.join(fault.causes)} first" if fault else "no alarm"
        got = ", ".join(each.causes[:3]) or each.severity or "no alarm"
        print(f"{'right' if right else 'WRONG':5}  {each.trial.member.id:45} wanted: {wanted}; got: {got}")
        for finding in () if right else each.findings:
            print(f"       {finding}")
        wrong += not right
    return 1 if wrong else 0


def _is_twin(member: Member, faulty: Member) -> bool:
    return (member.script, member.name) == (faulty.script, faulty.twin)


if __name__ == "__main__":
    sys.exit(main())
