"""The models of a run in words: a line for each of the worst, and how many more there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchglass.records import MOST_MODELS, ModelSummary, Verdict, count, model_name
from watchglass.view.text import number, printable

#: Models that have a line in a verdict.
_MOST_LINES, _FEW_LINES = 8, 3
#: Models that are named in a sentence.
_MOST_NAMES = 3


def model_lines(verdict: Verdict, *, brief: bool = False) -> Iterator[str]:
    """A line for each of several models, those with the worst findings first; a few of them if ``brief``."""
    most = _FEW_LINES if brief else _MOST_LINES
    ordered = sorted(verdict.models, key=_worst_first)
    shown = ordered if len(ordered) <= most else ordered[: most - 1]
    for summary in shown:
        yield model_line(summary)
    rest = ordered[len(shown) :]
    if rest:
        hit = sum(bool(summary.findings) for summary in rest)
        found = f"{hit:,} of them with findings" if hit else "no findings in them"
        yield f"and {count(len(rest), 'further model')}; {found}"
    if any(summary.model >= MOST_MODELS for summary in ordered):
        yield f"rules evaluate {MOST_MODELS:,} models of each process; later models are only recorded"


def model_line(summary: ModelSummary) -> str:
    """One model in a line: ``"model_2 (Net): 400 training steps (38 examined), training loss 0.31; 2 findings"``.

    By the name that the script has for it, if that is known: ``"D (model_2, Net): ..."``.
    """
    whose = f" of {printable(summary.worker)}" if summary.worker else ""
    name = printable(summary.variable) or summary.name
    about = ", ".join(filter(None, (summary.name if name != summary.name else "", printable(summary.type))))
    kind = f" ({about})" if about else ""
    values = {"training loss": summary.training_loss, summary.validation_name: summary.validation_loss}
    parts = [count(summary.train_steps, "training step") if summary.train_steps else "not trained"]
    if summary.train_steps and summary.examined_steps is not None:
        parts[0] += f" ({summary.examined_steps:,} examined)"
    parts += [f"{of} {number(value)}" for of, value in values.items() if value is not None]
    best = summary.best_validation_loss
    if best is not None and best != summary.validation_loss:
        parts[-1] += f" (best {number(best)})"
    if summary.accuracy is not None:
        parts.append(f"{summary.accuracy_name.removeprefix('validation ')} {number(summary.accuracy)}")
    found = f"; {count(summary.findings, 'finding')}" if summary.findings else ""
    return f"{name}{whose}{kind}: {', '.join(parts)}{found}"


def models_named(models: Sequence[int]) -> str:
    """``"model_2"``, ``"model and model_3"``, ``"10 models (model, model_2, model_3 and 7 more)"``."""
    named = [model_name(model) for model in models]
    if len(named) <= _MOST_NAMES:
        return " and ".join(filter(None, (", ".join(named[:-1]), *named[-1:])))
    return f"{len(named):,} models ({', '.join(named[:_MOST_NAMES])} and {len(named) - _MOST_NAMES:,} more)"


def _worst_first(summary: ModelSummary) -> tuple[int, int, int]:
    return (-1 if summary.worst is None else summary.worst.rank) * -1, -summary.findings, summary.model
