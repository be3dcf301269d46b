"""Kinds of facts that capture can record, with their cost and use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from watchglass.records import SEEN_ROWS, DeclaredFact, facts


@dataclass(frozen=True)
class FactKind:
    """One kind of fact that can be switched on and off.

    Attributes:
        name: Its declaration among :mod:`watchglass.records.facts`, which is imported when it is used.
        needed_by: ``"report"`` where the report shows it, so that it is recorded unless the user chooses the facts;
            ``"rules"`` where a rule of the default set looks at it; "" where neither does.
    """

    name: str
    needed_by: str = "rules"

    @property
    def declared(self) -> type[DeclaredFact]:
        """Its declaration."""
        kind: type[DeclaredFact] = getattr(facts, self.name)
        return kind


#: Kinds of facts by name.
FACTS: Mapping[str, FactKind] = MappingProxyType(
    {
        "calls": FactKind("Calls"),
        "leftover_gradients": FactKind("LeftoverGradients"),
        "clip": FactKind("Clip", needed_by="report"),
        "loss_scale": FactKind("LossScale", needed_by="report"),
        "step_skipped": FactKind("StepSkipped"),
        "initialization": FactKind("Initialization"),
        "batch": FactKind("BatchInputs"),
        "data_loader": FactKind("LoaderSettings", needed_by="report"),
        "input_sketch": FactKind("InputSketch"),
        "output_sketch": FactKind("OutputSketch"),
        "target_sketch": FactKind("TargetSketch"),
        SEEN_ROWS: FactKind("RowsSeen", needed_by="report"),
        "training_flags": FactKind("TrainingFlags"),
        "membership": FactKind("Membership"),
        "loss_call": FactKind("ComputedLoss"),
        "allocator": FactKind("AllocatorMemory", needed_by=""),
        "held_memory": FactKind("HeldGraphs", needed_by=""),
        "tensor_reads": FactKind("ReadLines", needed_by=""),
        "token_targets": FactKind("TokensAndLabels"),
        "update_sample": FactKind("UpdateSample"),
        "gradient_noise": FactKind("SampledNoise", needed_by=""),
        "running_statistics": FactKind("NormalizationStatistics"),
        "rank_gradients": FactKind("AveragedGradient"),
        "loss_graph": FactKind("TermsOfLoss"),
        "forward_graph": FactKind("ForwardLayers"),
        "unheld_parameters": FactKind("ReachedParameters"),
    }
)


#: Facts that evaluations have as well, at some of their first steps whatever is captured there.
SKETCHES = frozenset({"input_sketch", "output_sketch", "target_sketch"})


def chosen_facts(names: Iterable[str] | None) -> frozenset[str]:
    """The kinds to record: those named, or those that the report or the default rules need where ``names`` is None."""
    if names is None:
        return frozenset(name for name, kind in FACTS.items() if kind.needed_by)
    return frozenset(names)


def facts_for(needed: Iterable[str], *, default: bool) -> tuple[str, ...] | None:
    """The kinds to record for some rules, sorted; None where these are those that are recorded when nothing is chosen.

    Args:
        needed: Kinds of facts that rules look at.
        default: Whether the default rules are among them.
    """
    shown = {name for name, kind in FACTS.items() if kind.needed_by == "report"}
    base = chosen_facts(None) if default else shown
    kinds = base | FACTS.keys() & set(needed)
    return None if kinds == chosen_facts(None) else tuple(sorted(kinds))
