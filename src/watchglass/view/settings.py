"""The recorded settings of a run: versions, model, optimizers, data loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    shown = []
    for name, value in data.items():
        if value is True:
            shown.append(str(name))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            shown.append(f"{name} {number(float(value)) if isinstance(value, float) else format(value, ',')}")
        elif isinstance(value, str) and value:
            shown.append(f"{name} {value}")
        elif isinstance(value, list) and value and all(isinstance(each, (int, float, str)) for each in value[:_MOST]):
            shown.append(f"{name} {', '.join(map(str, value[:_MOST]))}")
    return ", ".join(shown) or "defaults"
