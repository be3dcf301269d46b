"""The recorded settings of a run: versions, model, optimizers, data loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from watchglass.capture import FRAMEWORKS
from watchglass.records import DeclaredFact, count, facts, model_name
from watchglass.view.text import number

if TYPE_CHECKING:
    from watchglass.run import Run

_Kind = TypeVar("_Kind", bound=DeclaredFact)
#: Most facts of a kind, and most parameter groups of an optimizer, that are shown.
_MOST = 8
#: Packages that a line names.
_NAMED = 6


def setting_rows(run: Run) -> Iterator[tuple[str, str]]:
    """The rows of the report's table of settings: names and texts, in plain text."""
    yield from origin_rows(run)
    for model in _different(run, facts.ModelDescription):
        yield "Model", _whose(model.model) + _model(model)
    for optimizer in _different(run, facts.OptimizerSettings):
        groups = optimizer.groups
        for position, group in enumerate(groups[:_MOST]):
            of = f", group {position + 1} of {len(groups)}" if len(groups) > 1 else ""
            yield "Optimizer", f"{_whose(optimizer.model)}{optimizer.type or 'optimizer'}{of}: {_pairs(group)}"
    for loader in _different(run, facts.LoaderSettings):
        named = f"{loader.loader}: " if loader.loader else ""
        yield "Data loader", named + _pairs({name: each for name, each in loader.to_data().items() if name != "loader"})
    for planned in _different(run, facts.PlannedSteps):
        steps = "unknown" if planned.steps is None else f"{planned.steps:,}"
        yield "Planned steps", steps + (f", from {planned.source}" if planned.source else "")


def origin_rows(run: Run) -> Iterator[tuple[str, str]]:
    """Where the code of a run comes from and where it ran: commit, releases, host; as far as it was recorded."""
    joined = _joined(run)
    git = joined.get("git")
    if isinstance(git, Mapping) and git.get("commit"):
        branch = f", branch {git['branch']}" if git.get("branch") else ""
        yield "Git commit", f"{git['commit']}{branch}; files may have been changed since"
    packages = packages_of(run)
    if packages:
        named = ", ".join(f"{name} {version}" for name, version in packages[:_NAMED])
        yield "Software", named + (f", and {len(packages) - _NAMED} more packages" if len(packages) > _NAMED else "")
    if joined.get("host"):
        yield "Host", str(joined["host"])


def packages_of(run: Run) -> list[tuple[str, str]]:
    """Names and releases of Python and of the packages that the first worker had loaded, frameworks before others."""
    versions = _joined(run).get("versions")
    found = [(str(name), str(each)) for name, each in versions.items()] if isinstance(versions, Mapping) else []
    return sorted(found, key=lambda each: each[0] not in ("python", *FRAMEWORKS))


def _joined(run: Run) -> Mapping[str, Any]:
    return next((each for each in run.worker().lifecycle if each.get("event") == "joined"), {})


def settings_of(run: Run) -> dict[str, str]:
    """What the run was started with, by name: options of its command, optimizers, model, loaders, versions."""
    found = dict(_options(run.manifest.command))
    for optimizer in reversed(_different(run, facts.OptimizerSettings)):
        whose = _whose(optimizer.model).removesuffix(", ")
        begin = f"{whose}." if whose else ""
        found |= {f"{begin}optimizer": optimizer.type or ""}
        found |= {
            f"{begin}{name}": text
            for group in optimizer.groups[:1]
            for name, text in _values(group)
            if not name.startswith("initial_")
        }
    for model in _different(run, facts.ModelDescription)[:1]:
        found["model"] = _model(model)
    for loader in _different(run, facts.LoaderSettings)[:1]:
        found |= {f"loader.{name}": text for name, text in _values(loader.to_data()) if name != "loader"}
    for planned in _different(run, facts.PlannedSteps)[:1]:
        found |= {f"planned.{name}": text for name, text in _values(planned.to_data())}
    git = _joined(run).get("git")
    found |= {"git commit": str(git["commit"])[:12]} if isinstance(git, Mapping) and git.get("commit") else {}
    return found | dict(packages_of(run))


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Names of the settings that are not the same in all runs, in the order of their first appearance."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({each.get(name) for each in settings}) > 1]


def _options(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The script and its arguments: ``--lr 0.1``, ``--lr=0.1``, ``lr=0.1``, ``--flag``; others by their place."""
    words = list(command)
    if words:
        yield "script", words.pop(0)
    place = 0
    while words:
        word = words.pop(0)
        name, assigned, value = word.partition("=")
        if word.startswith("-") and not assigned:
            has_value = bool(words) and (not words[0].startswith("-") or _is_number(words[0]))
            yield word, words.pop(0) if has_value else "yes"
        elif assigned and name:
            yield name, value
        else:
            place += 1
            yield f"argument {place}", word


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _different(run: Run, kind: type[_Kind]) -> list[_Kind]:
    """The facts of a kind, each once, in the order in which they were recorded."""
    found: list[_Kind] = []
    for fact in run.facts(kind):
        if fact not in found and len(found) < _MOST:
            found.append(fact)
    return found


def _whose(model: int | None) -> str:
    """``"model_2, "`` for the number of one of several models."""
    return f"{model_name(model)}, " if model is not None and model >= 0 else ""


def _model(model: facts.ModelDescription) -> str:
    name = ", ".join(model.roots) or (model.module_types or {}).get("") or "a model"
    parts = [count(len(model.module_types), "module")] if model.module_types else []
    if model.parameters is not None:
        parts.append(count(model.parameters, "parameter"))
    if model.compiled:
        parts.append("compiled")
    return f"{name}: {', '.join(parts)}" if parts else name


def _pairs(data: Mapping[str, Any]) -> str:
    """Settings that are on, ``"lr 0.003, weight_decay 0.05"``."""
    return ", ".join(name if text == "yes" else f"{name} {text}" for name, text in _values(data)) or "defaults"


def _values(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings that are on, by name."""
    for name, value in data.items():
        if value is True:
            yield str(name), "yes"
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield str(name), number(float(value)) if isinstance(value, float) else format(value, ",")
        elif isinstance(value, str) and value:
            yield str(name), value
        elif isinstance(value, list) and value and all(isinstance(each, (int, float, str)) for each in value[:_MOST]):
            yield str(name), ", ".join(map(str, value[:_MOST]))
