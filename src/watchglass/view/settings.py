"""The recorded settings of a run: versions, model, optimizers, data loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from watchglass.records import count, model_name
from watchglass.view.text import number

if TYPE_CHECKING:
    from watchglass.run import Run

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
    for data in _different(run, "model"):
        yield "Model", _whose(data) + _model(data)
    for data in _different(run, "optimizer"):
        groups = data.get("groups")
        groups = [group for group in groups if isinstance(group, Mapping)] if isinstance(groups, list) else []
        kind = str(data.get("type", "optimizer"))
        for position, group in enumerate(groups[:_MOST]):
            of = f", group {position + 1} of {len(groups)}" if len(groups) > 1 else ""
            yield "Optimizer", f"{_whose(data)}{kind}{of}: {_pairs(group)}"
    for kind, label in (("data_loader", "Data loader"), ("planned_steps", "Planned steps")):
        for data in _different(run, kind):
            yield label, _pairs(data)


def _different(run: Run, kind: str) -> list[Mapping[str, Any]]:
    """The data of the facts of a kind, each once, in the order in which they were recorded."""
    found: list[Mapping[str, Any]] = []
    for fact in run.facts(kind):
        if fact.data not in found and len(found) < _MOST:
            found.append(fact.data)
    return found


def _whose(data: Mapping[str, Any]) -> str:
    """``"model_2, "`` if the data name one of several models."""
    number = data.get("model")
    return f"{model_name(number)}, " if type(number) is int and number >= 0 else ""


def _model(data: Mapping[str, Any]) -> str:
    types = data.get("module_types")
    kinds = list(types.values()) if isinstance(types, Mapping) else []
    roots = data.get("roots")
    name = ", ".join(map(str, roots)) if isinstance(roots, list) and roots else "a model"
    parts = [count(len(kinds), "module")] if kinds else []
    if isinstance(data.get("parameters"), int):
        parts.append(count(data["parameters"], "parameter"))
    if data.get("compiled"):
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
