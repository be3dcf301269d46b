"""`watch`: one line in a script or notebook."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from watchglass.capture import Hook
from watchglass.config import DEFAULT_RUNS, EvaluatorConfig, SessionConfig, environment, find_file, joined, read_file
from watchglass.errors import InvalidValueError
from watchglass.records import Severity
from watchglass.session.actions import action_specs
from watchglass.session.current import current_hook, set_current
from watchglass.session.evaluator import WatchedEvaluator
from watchglass.session.rules import capture_of_rules, rule_specs, severity_of

_log = logging.getLogger("watchglass")


def watch(
    model: Any,
    *,
    optimizer: Any = None,
    run: str | os.PathLike[str] | None = None,
    runs: str | os.PathLike[str] | None = None,
    rules: str | Iterable[Any] | None = None,
    calibration: str = "default",
    stop_on: Severity | str | None = None,
    actions: str | Iterable[Any] | None = None,
    config_file: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Hook:
    """Watch a model's training from here on; returns the hook, whose ``close`` ends it.

    Losses, accuracy, learning rates, weights, gradients, updates and module outputs are found by themselves. In a
    script that runs under ``watchglass run`` the model joins that run: settings that are given here hold there too,
    where its command line does not say otherwise, and the other arguments are not needed.

    Args:
        model: A ``torch.nn.Module``, as it is called in the training loop.
        optimizer: Its optimizer; may be left out, every optimizer of the model's parameters is found.
        run: Where the run is written, a folder or ``s3://bucket/path``; ``<script>-<time>`` below ``runs`` when not
            given.
        runs: Folder or prefix of runs that are not named; ``$WATCHGLASS_RUNS``, or ``runs``, when not given.
        rules: As on the command line, ``"default"`` or ``"llm,my_rules.py:MyRule"``, or a list of such texts, rule
            classes and rule instances: evaluated in a process of their own while the training goes on, findings
            printed as they come. What they need is captured, where ``collections`` does not say otherwise. None
            evaluates nothing now; ``watchglass check`` can later.
        calibration: Thresholds that rules begin with: ``"default"``, or ``"sagemaker"``, those that SageMaker Debugger
            documents.
        stop_on: Stop the training at a finding of this severity: ``"error"`` or ``"warning"``. None never stops it.
        actions: What else to do about findings, beside what the file of settings names: texts as on the command line,
            ``"Webhook:url=https://example.org/hook"``, action classes and actions.
        config_file: File of settings; when not given, the nearest ``watchglass.toml`` if there is one.
        **settings: Fields of :class:`~watchglass.config.SessionConfig`: ``collections``, ``save_interval`` (steps),
            ``overhead_budget`` (ratio, 0.01), ``capture_memory_bytes``, ``planned_steps`` and so on. They come before
            those of the file.

    Raises:
        InvalidValueError: Something that is not a model, an unknown setting, or one outside its limits.
        MissingFileError: ``config_file`` is not there.
        NotARunError: ``run`` exists and is not a run.
        RunExistsError: Another training process, of no common launch, writes ``run`` now.
        UnknownNameError: A rule or an action that does not exist.
    """
    _check_model(model, optimizer)
    hook = current_hook()
    if hook is not None and (run is None or SessionConfig.from_env() is not None):
        if SessionConfig.from_env() is None:
            _warn_of_ignored(
                rules=rules, calibration=calibration, stop_on=stop_on, actions=actions, config_file=config_file
            )
        reconfigure(hook, settings)
        _adapter(hook, discover=False).attach(model)
        return hook
    path = os.fspath(run) if run is not None else default_run(runs)
    told = evaluation(path, rules, calibration, stop_on, actions, config_file)
    return _begun(model, _configuration(path, config_file, settings, told), told)


def _begun(model: Any, config: SessionConfig, told: EvaluatorConfig | None) -> Hook:
    hook = Hook(config=config)
    if environment.disabled():
        hook.close()
        return hook
    evaluated_by(hook, told)
    _adapter(hook, discover=False).attach(model)
    set_current(hook)
    return hook


def evaluated_by(hook: Hook, told: EvaluatorConfig | None) -> None:
    """Have an evaluator started when training has begun, and ended with it; none where nothing is evaluated."""
    if told is not None:
        evaluator = WatchedEvaluator(told)
        hook.on_start.append(evaluator.start)
        hook.on_look.append(evaluator.look)
        hook.on_close.append(evaluator.finish)


def evaluation(
    run: str,
    rules: str | Iterable[Any] | None,
    calibration: str,
    stop_on: Severity | str | None,
    actions: str | Iterable[Any] | None = None,
    config_file: str | os.PathLike[str] | None = None,
) -> EvaluatorConfig | None:
    """What the evaluator of a script is told, None where it has none or watching is switched off.

    Raises:
        InvalidValueError, UnknownNameError: See :func:`rule_specs` and :func:`action_specs`.
    """
    severity = severity_of(stop_on)
    if environment.disabled():
        return None
    if rules is None and (stop_on is not None or actions is not None):
        rules = "default"
    if rules is None:
        return None
    specs = rule_specs(rules, calibration)
    return EvaluatorConfig(
        run, None, specs, severity, action_specs(actions, specs, config_file), calibration=calibration
    )


def _configuration(
    run: str,
    config_file: str | os.PathLike[str] | None,
    settings: dict[str, Any],
    told: EvaluatorConfig | None = None,
) -> SessionConfig:
    found = None if environment.disabled() and config_file is None else find_file(config_file)
    in_file = {} if found is None else read_file(found)
    if found is not None:
        _log.info("watchglass: settings from %s", found)
    asked = capture_of_rules(told, in_file, settings)
    return SessionConfig(run=run).with_settings(asked).with_settings(in_file).with_settings(settings)


def reconfigure(hook: Hook, settings: dict[str, Any]) -> None:
    """Settings of a script whose process is watched already; how records are written stays as it is."""
    if settings:
        hook.reconfigure(hook.config.with_settings(settings))


def _warn_of_ignored(**given: Any) -> None:
    names = [name for name, value in given.items() if value is not None and (name, value) != ("calibration", "default")]
    if names:
        _log.warning(
            "watchglass: this process is watched already, so %s of this call of watch %s ignored: give them in the "
            "first, or close its hook before", " and ".join(names), "is" if len(names) == 1 else "are",
        )  # fmt: skip


def _adapter(hook: Hook, *, discover: bool) -> Any:
    from watchglass.capture.pytorch import PyTorchAdapter

    found = PyTorchAdapter.of(hook)
    return found if found is not None else PyTorchAdapter(hook, discover=discover)


def _check_model(model: Any, optimizer: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise InvalidValueError(
            f"watch needs a torch.nn.Module but got {type(model).__name__}; for other loops use Hook"
        )
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidValueError(f"optimizer must be a torch.optim.Optimizer but got {type(optimizer).__name__}")


def default_run(runs: str | os.PathLike[str] | None = None) -> str:
    """Location of a run that is not named: script and time, below ``runs`` or where the environment says."""
    script = Path(sys.argv[0] or "python").stem if not hasattr(sys, "ps1") else "session"
    folder = os.fspath(runs) if runs is not None else environment.runs() or DEFAULT_RUNS
    return joined(folder, f"{script or 'session'}-{time.strftime('%Y%m%d-%H%M%S')}")
