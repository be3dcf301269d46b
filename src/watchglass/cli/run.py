"""``watchglass run``: run a training script under watch."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from watchglass import view
from watchglass.cli import capture_options, evaluator_options, shared_options
from watchglass.cli.declaring import argument, option
from watchglass.cli.failure import print_note, print_warning, show_traceback
from watchglass.cli.terminal import print_verdict_beside, progress, working
from watchglass.config import DEFAULT_RUNS, EvaluatorConfig, environment
from watchglass.errors import EXIT_STOPPED, LaunchError
from watchglass.records import Severity

if TYPE_CHECKING:
    from watchglass.launch import Job, LaunchOutcome
    from watchglass.records import Verdict


class RunCommand(TyperCommand):
    """The verb, whose options end at the script or at the module that follows ``-m``, as those of python do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add ``--`` after ``-m MODULE``, so that the words that follow are arguments of the module."""
        return super().parse_args(ctx, _end_options_at_module(args, self._options_with_value()))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line; script and arguments are one parameter of this command."""
        return ["[OPTIONS]", "SCRIPT|-m MODULE", "[ARGS]..."]

    def _options_with_value(self) -> set[str]:
        return {
            name
            for parameter in self.params
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
            for name in parameter.opts
        }


def _end_options_at_module(args: list[str], with_value: Iterable[str]) -> list[str]:
    position = 0
    while position < len(args):
        word = args[position]
        if word == "-m":
            return [*args[: position + 2], "--", *args[position + 2 :]]
        if word.startswith("-m") and not word.startswith("--"):
            return [*args[:position], "-m", word[2:], "--", *args[position + 1 :]]
        if not word.startswith("-") or word in ("-", "--"):
            return args
        position += 2 if word in with_value else 1
    return args


Words = Annotated[
    list[str] | None, argument("SCRIPT [ARGS]", "Training script, followed by its arguments.", show_default=False)
]
Module = Annotated[str | None, option("-m MODULE", "Run a module like 'python -m MODULE ARGS'.")]
RunDirectory = Annotated[
    str | None,
    # Older torchruns take --run behind the script for an ambiguous abbreviation of their own --run-path.
    option(
        "--run, --run-dir RUN",
        "Location of the run: a folder, or s3://BUCKET/PATH; --run-dir with torchrun. "
        "[default: a new path below --runs]",
    ),
]
RunsFolder = Annotated[
    str | None,
    option(
        "--runs PREFIX",
        "Folder or prefix for runs without --run, each as SCRIPT-DATE-TIME. [default: $WATCHGLASS_RUNS or runs]",
    ),
]
EvaluatorKind = Annotated[
    str,
    option(
        "--evaluator local|none",
        "local: evaluate rules on this machine. none: only record; evaluate elsewhere with 'watchglass follow', "
        "or later with 'watchglass check'.",
    ),
]
ReportFile = Annotated[str | None, option("--report FILE", "Write an HTML report at the end of the run.")]

ProfilerReportFile = Annotated[
    str | None,
    option(
        "--profiler-report FILE",
        "Also write the report on time and machine at the end of the run, as JSON if FILE ends with .json.",
    ),
]


def run(
    context: typer.Context,
    words: Words = None,
    module: Module = None,
    run_directory: RunDirectory = None,
    runs: RunsFolder = None,
    evaluator: EvaluatorKind = "local",
    rules: evaluator_options.Rules = None,
    calibration: evaluator_options.Calibration = "default",
    stop_on: evaluator_options.StopOn = None,
    action: evaluator_options.Actions = None,
    causes: evaluator_options.Causes = None,
    rule_timeout: evaluator_options.RuleTimeout = 30.0,
    price_per_hour: shared_options.PricePerHour = None,
    config: capture_options.ConfigFile = None,
    collection: capture_options.Collections = None,
    save_interval: capture_options.SaveInterval = None,
    save_raw: capture_options.SaveRaw = None,
    save_all: capture_options.SaveAll = False,
    include_workers: capture_options.IncludeWorkers = None,
    overhead_budget: capture_options.OverheadBudget = None,
    planned_steps: capture_options.PlannedSteps = None,
    no_profiler: capture_options.NoProfiler = False,
    sample_interval: capture_options.SampleInterval = None,
    profile_steps: capture_options.ProfileSteps = None,
    keep_traces: capture_options.KeepTraces = False,
    python_profile: capture_options.PythonProfile = None,
    python_profiler: capture_options.PythonProfiler = None,
    module_times: capture_options.ModuleTimes = False,
    tensorboard: capture_options.TensorBoard = None,
    report: ReportFile = None,
    profiler_report: ProfilerReportFile = None,
    compact: Annotated[bool, option("--compact", "Compact the run at its end, like 'watchglass compact'.")] = False,
    no_capture: Annotated[bool, option("--no-capture", "Run the script without watchglass.")] = False,
    quiet: shared_options.Quiet = False,
    verbose: shared_options.Verbose = False,
) -> int:
    """Run a training script under watch, without changes to the script.

    Put the options of watchglass before the script. All words after the script are its arguments. Findings are printed
    on stderr while the script runs, and a verdict at the end. The run is stopped only with --stop-on. The exit status
    is that of the script, or 86 after a stop.

    With torchrun:  torchrun --nproc-per-node 2 -m watchglass run --run-dir RUN train.py
    """
    from watchglass.launch import Job, run_untouched

    if not words and module is None:
        raise LaunchError("SCRIPT is missing; usage: watchglass run [OPTIONS] train.py [ARGS]")
    if runs is not None and run_directory is not None:
        raise LaunchError("use either --run or --runs, not both")
    target, *arguments = words or () if module is None else (module, *(words or ()))
    job = Job(
        target, tuple(arguments), is_module=module is not None, run=run_directory,
        runs=runs or environment.runs() or DEFAULT_RUNS,
    )  # fmt: skip
    if no_capture or environment.disabled():
        return run_untouched(job)
    _check(evaluator, rules, stop_on, (report, profiler_report), action)
    given = capture_options.given_settings(
        collections=collection, save_interval=save_interval, save_raw=save_raw, save_all=save_all,
        include_workers=include_workers, overhead_budget=overhead_budget, planned_steps=planned_steps,
        tensorboard=tensorboard,
        profiler={
            "enabled": False if no_profiler else None, "sample_interval_s": sample_interval,
            "module_times": module_times, "profile_steps": profile_steps, "python_profile": python_profile,
            "python_profiler": python_profiler, "keep_traces": keep_traces or None,
        },
    )  # fmt: skip
    config_of_evaluator = None
    if evaluator == "local":
        config_of_evaluator = evaluator_options.evaluator_config(
            rules=rules, calibration=calibration, stop_on=stop_on, actions=action, config_file=config, causes=causes,
            rule_timeout_s=rule_timeout, price_per_hour=price_per_hour, quiet=quiet, acts=True,
            timing=context.obj.evaluator,
        )  # fmt: skip
    file, capture = capture_options.capture_config(config, given, config_of_evaluator)
    price = shared_options.price_of(price_per_hour)
    after = _After(report, profiler_report, price, file, compact, quiet, verbose)
    return _launch(replace(job, evaluator=config_of_evaluator, capture=capture), after)


class _After(NamedTuple):
    """The work of the command in addition to the launch."""

    report: str | None  #: Path of the report; None for no report.
    profiler_report: str | None  #: The same of the report on time and machine.
    price: float | None  #: Price of an hour; None if unknown.
    file: Path | None  #: The file of settings; None for none.
    compact: bool  #: Whether to compact the run.
    quiet: bool  #: Whether to print warnings only.
    verbose: bool = False  #: Whether the verdict has cost and counts.


def _launch(job: Job, after: _After) -> int:
    from watchglass.launch import launch

    def started(run: str, attempt: int) -> None:
        if after.quiet:
            return
        print_note(_announcement(job, run, attempt, after.file))
        profiler, tensorboard = job.capture.profiler, job.capture.tensorboard
        if tensorboard is not None:
            print_note(f"to look at it in TensorBoard: tensorboard --logdir {shlex.quote(tensorboard.folder)}")
        if profiler.keep_traces and not profiler.profile_steps:
            print_note(f"no trace is kept yet: --profile-steps is missing; to profile steps: watchglass profile {run}")

    outcome = launch(
        job,
        started=started,
        report=print_warning,
        waiting=lambda: progress("watchglass: evaluating the last steps (Ctrl-C to skip)", enabled=not after.quiet),
    )
    for problem in outcome.problems:
        print_warning(problem)
    if outcome.unwritten:
        later = f"to recover its last steps once it can be written: watchglass check {outcome.run}"
        print_warning(f"the end of the run could not be written: {outcome.unwritten}; {later}")
    if outcome.leads:
        try:
            _conclude(job, outcome, after)
        except KeyboardInterrupt:
            print_note(f"interrupted; to get the verdict: watchglass check {outcome.run}")
        except Exception as error:  # the exit status must be that of the script
            show_traceback()
            print_warning(f"no verdict on {outcome.run}: {error}")
        if after.compact:
            _compact(outcome.run, quiet=after.quiet)
        if after.profiler_report is not None:
            _write_profiler_report(outcome.run, after.profiler_report)
    return outcome.exit_status


def _announcement(job: Job, run: str, attempt: int, file: Path | None) -> str:
    again = f", attempt {attempt} of an existing run" if attempt else ""
    settings = f", settings from {file}" if file else ""
    follow = "" if job.evaluator else f"; not being evaluated; to evaluate it: watchglass follow {run}"
    return f"run directory {run}{again}{settings}{follow}"


def _conclude(job: Job, outcome: LaunchOutcome, after: _After) -> None:
    """Print the verdict on stderr, after the output of the script, and write the report."""
    evaluator, verdict, run = job.evaluator, outcome.verdict, None
    if evaluator is None and not after.quiet:
        print_note(_recorded(outcome))
    if evaluator is not None and not outcome.evaluated:
        print_note(f"to get the verdict: watchglass check {outcome.run}")
        return
    if after.report is not None or (verdict is None and evaluator is not None and not after.quiet):
        from watchglass.cli.verdicts import judged, replayed

        if evaluator is not None:
            recovers = not outcome.unwritten
            run, verdict = judged(outcome.run, causes=evaluator.causes, price_per_hour=after.price, recovers=recovers)
        else:
            run, verdict = replayed(EvaluatorConfig(outcome.run, None, (), price_per_hour=after.price))
    if evaluator is not None and verdict is not None:
        verdict = as_the_script_ended(verdict, outcome)
        # The launcher alone knows it; it is not written into the run.
        verdict = replace(verdict, capture={**verdict.capture, "beside_cpu_ns": outcome.beside_cpu_s * 1e9})
        if not after.quiet:
            options = evaluator_options.explain_options(None, "default", evaluator.causes)
            print_verdict_beside(verdict, options, verbose=after.verbose)
    if after.report is not None and run is not None and verdict is not None:
        shown = view.Judged([verdict], runs={verdict.run: run})
        print_note(f"report {after.report} ({view.size(view.write_report(shown, after.report))})")


def as_the_script_ended(verdict: Verdict, outcome: LaunchOutcome) -> Verdict:
    """The verdict, without a failure or a lack of data that only shows that the end of the run could not be written.

    On a full disk the records of a script that has succeeded look like those of a killed process.
    """
    if outcome.unwritten and verdict.status == "no data":
        return replace(verdict, unjudged="no training step could be written")
    failure = verdict.failure
    if outcome.exit_status or failure is None or (failure.kind, failure.worker) != ("lost", "worker_0"):
        return verdict
    found = any(finding.severity is not Severity.INFO for finding in verdict.findings)
    return replace(verdict, status="issues found" if found else "damaged", failure=None, records_missing=True)


def _write_profiler_report(run: str, output: str) -> None:
    """Write the report on time and machine where the user named it; its failure is a warning."""
    from watchglass.cli.profiler_report import write_profiler_report

    later = view.command("report", "--profiler", run, "-o", output)
    try:
        print_note(f"profiler report {output} ({view.size(write_profiler_report(run, output).bytes)})")
    except KeyboardInterrupt:
        print_note(f"interrupted; to write the profiler report: {later}")
    except Exception as error:  # the exit status must be that of the script
        show_traceback()
        print_warning(f"no profiler report: {error}; to try again: {later}")


def _compact(run: str, *, quiet: bool) -> None:
    """Compact the run, when no process of this launch writes or reads it any more."""
    from watchglass.store import compact, open_store

    try:
        with working("compacting the run (Ctrl-C to skip)"), closing(open_store(run)) as store:
            done = compact(store)
    except KeyboardInterrupt:
        print_note(f"interrupted; to compact it: watchglass compact {run}")
    except Exception as error:  # the exit status must be that of the script
        print_warning(f"{run} was not compacted: {error}")
    else:
        if done.written and not quiet:
            print_note(f"compacted: {view.size(done.before_bytes)} to {view.size(done.after_bytes)}")
        for reason in done.kept:
            print_note(reason)


def _recorded(outcome: LaunchOutcome) -> str:
    end = "stopped by request; " if outcome.exit_status == EXIT_STOPPED else ""
    if outcome.failure is not None:
        end = f"{view.ended_how(outcome.failure)}; "
    return f"{end}recorded; to get the verdict: watchglass check {outcome.run}"


def _check(
    evaluator: str,
    rules: list[str] | None,
    stop_on: str | None,
    reports: tuple[str | None, str | None],
    actions: list[str] | None,
) -> None:
    """Refuse options before the script starts if they cannot take effect during the run or after it."""
    shared_options.check_choice("--evaluator", evaluator, ("local", "none"))
    for name, given in (("--rules", rules), ("--action", actions), ("--stop-on", stop_on)):
        if given and evaluator == "none":
            raise LaunchError(f"{name} needs an evaluator; omit --evaluator none, or pass {name} to watchglass follow")
    for report, or_json in zip(reports, (False, True), strict=True):
        if report is not None:
            view.check_report_path(report, replace=False, or_json=or_json)
