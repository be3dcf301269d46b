"""Make a small run on which a built-in rule fires, or its healthy twin, and print the verdict.

    python examples/rules.py DeadRelu             the sick run
    python examples/rules.py DeadRelu --healthy   its healthy twin

The runs are those of the tests of the rules, so this needs a checkout after `make setup-dev`. A rule that no real
training run fires in the tests has a run made of numbers, which only that rule judges.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))


def main() -> int:
    """Entry point.

    Returns:
        Exit status of `watchglass check`: 0 for no findings, 1 for some, 2 for no answer.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rule", metavar="NAME", help="a built-in rule")
    parser.add_argument("--healthy", action="store_true", help="the healthy twin instead of the sick run")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs", "rules"), help="folder of the runs (default: %(default)s)"
    )
    options = parser.parse_args()

    from example_runs import example_run
    from watchglass.cli import main as watchglass
    from watchglass.rules import rule_names

    if options.rule not in rule_names():
        parser.error(f"NAME must be a built-in rule but got {options.rule!r}; watchglass rules lists them")
    folder = options.runs / f"{options.rule}-{'healthy' if options.healthy else 'sick'}"
    shutil.rmtree(folder, ignore_errors=True)
    run = example_run(options.rule, folder, sick=not options.healthy)
    named = ",".join(f"{key}={value}" for key, value in run.rule.parameters.items())
    rule = f"{run.rule.name}:{named}" if named else run.rule.name
    command = ["check", str(run.path), "--rules", f"default,{rule}" if run.trained else rule]
    print(f"$ watchglass {' '.join(command)}", flush=True)
    return watchglass(command)


if __name__ == "__main__":
    sys.exit(main())
