"""The recorded settings of a run: versions, model, optimizers, data loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from watchglass.records import DeclaredFact, count, facts, model_name
from watchglass.view.text import number

if TYPE_CHECKING:
    from watchglass.run import Run

_Kind = TypeVar("_Kind", bound=DeclaredFact)
#: Most facts of a kind, and most parameter groups of an optimizer, that are shown.
_MOST = 8


def setting_rows(run: Run) -> Iterator[tuple[str, str]]:
    """The rows of the report's table of settings: names and texts, in plain text."""
    for event in run.worker().lifecycle:
        versions = event.get("versions")
        if event.get("event") == "joined" and isinstance(versions, Mapping):
            yield "Software", ", ".join(f"{name} {version}" for name, version in versions.items())
            if event.get("host"):
                yield "Machine", str(event["host"])
            break
    for model in _different(run, facts.ModelDescription):
        yield "Model", _whose(model.model) + _model(model)
    for optimizer in _different(run, facts.OptimizerSettings):
        groups = optimizer.groups
        for position, group in enumerate(groups[:_MOST]):
            of = f", group {position + 1} of {len(groups)}" if len(groups) > 1 else ""
            yield "Optimizer", f"{_whose(optimizer.model)}{optimizer.type or 'optimizer'}{of}: {_pairs(group)}"
    for loader in _different(run, facts.LoaderSettings):
        yield "Data loader", _pairs(loader.to_data())
    for planned in _different(run, facts.PlannedSteps):
        yield "Planned steps", _pairs(planned.to_data())


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
    versions: Any = next((each["versions"] for each in run.worker().lifecycle if "versions" in each), {})
    return found | ({name: str(text) for name, text in versions.items()} if isinstance(versions, Mapping) else {})


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
    name = ", ".join(model.roots) or "a model"
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
