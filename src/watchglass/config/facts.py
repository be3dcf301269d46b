"""Kinds of facts that capture can record, with their cost and use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from watchglass.records import SEEN_ROWS


@dataclass(frozen=True)
class FactKind:
    """One kind of fact that can be switched on and off.

    Attributes:
        needed_by: ``"report"`` where the report shows it, so that it is recorded unless the user chooses the facts;
            ``"rules"`` where a rule of the default set looks at it; "" where neither does.
        cost: What it costs, and when.
        help: Its description in one sentence.
        unseen: What was not seen in a run that records it and has none, as a clause; "" where that is not clear.
    """

    needed_by: str
    cost: str
    help: str
    unseen: str = ""


#: Kinds of facts by name. docs/facts.md describes their data.
FACTS: Mapping[str, FactKind] = MappingProxyType(
    {
        "calls": FactKind(
            "rules",
            "under a microsecond per call; nothing without calls",
            "backward, zero_grad, optimizer, scheduler, scaler and clip calls in their order",
        ),
        "leftover_gradients": FactKind(
            "rules",
            "up to four gradients per optimizer are examined, at captured steps",
            "gradients that are not zero before a step's first backward",
        ),
        "clip": FactKind(
            "report",
            "about a microsecond per clip call, at every step",
            "gradient clipping: its limit, its caller, how often it had something to clip",
        ),
        "loss_scale": FactKind(
            "report",
            "about a microsecond per update of a gradient scaler",
            "the scale of a gradient scaler, when it changes",
        ),
        "step_skipped": FactKind("rules", "nothing", "updates that a gradient scaler skipped"),
        "initialization": FactKind(
            "rules",
            "one pass over at most a million elements of each weight, before its first update",
            "how alike the rows of each weight are, and their spread, before the first update",
        ),
        "batch": FactKind(
            "rules",
            "a copy of at most 64 KiB of the inputs at captured steps and at the beginning of some epochs",
            "hash of the model's inputs, with the data worker where known",
        ),
        "data_loader": FactKind(
            "report",
            "a microsecond per epoch",
            "settings of each data loader, when it is first iterated over",
            "no data loader was seen",
        ),
        "input_sketch": FactKind(
            "rules",
            "computed by the recorder's thread from the batch's sample, at about 80 of 5,000 steps",
            "moments and quantiles of the model's inputs, by channel or feature",
        ),
        "output_sketch": FactKind(
            "rules",
            "a copy of at most 32,768 elements of the final output and of the inputs, at about 80 of 5,000 steps; the "
            "recorder's thread computes",
            "spread of the final output over the batch by unit, predicted classes, and errors by class",
        ),
        "target_sketch": FactKind(
            "rules",
            "a copy of at most 32,768 elements of the targets, at about 80 of 5,000 steps; the recorder's thread "
            "computes",
            "counts of classes, or moments of the targets of each loss function",
        ),
        SEEN_ROWS: FactKind(
            "report",
            "a copy of at most 64 rows of the inputs, of each at most 64 numbers or 256 tokens, at about 80 of 5,000 "
            "training steps and at each batch of an evaluation",
            "which batches of evaluations are training data: the share of their rows that training steps have had",
        ),
        "training_flags": FactKind(
            "rules",
            "0.1 microseconds per module, at captured steps, at the first forward of an evaluation and where the mode "
            "changes",
            "which modules are in training mode, when that changes",
        ),
        "membership": FactKind(
            "rules",
            "a microsecond per parameter, at a handful of steps and when an optimizer or what is frozen changes",
            "which of the model's parameters the optimizers have, and which of their parameters belong to no model",
            "no step of an optimizer was seen",
        ),
        "loss_call": FactKind(
            "rules",
            "a few microseconds per loss function called at captured steps",
            "shapes and dtypes of a loss's arguments, whether they broadcast, and what made the predictions",
            "no call of a loss function was seen",
        ),
        "allocator": FactKind(
            "",
            "some microseconds at captured steps on a GPU; nothing without one",
            "memory of a GPU that PyTorch's allocator has reserved, what tensors use of it, and retries",
        ),
        "held_memory": FactKind(
            "",
            "two microseconds at captured steps, and 0.2 ms for each million of Python's memory blocks",
            "graphs of earlier steps that something still holds, and the number of Python's memory blocks",
        ),
        "tensor_reads": FactKind(
            "",
            "0.2 microseconds at every step; about ten steps of a run are observed, with two microseconds for each of "
            "at most 1,024 reads",
            "lines of the script that read numbers of tensors one by one, or wait for a device",
        ),
        "token_targets": FactKind(
            "rules",
            "0.3 ms per attention and loss, and a copy of 4,096 tokens and labels, at the first three captured steps, "
            "then the 4th, 8th, 16th ...; nothing without an embedding",
            "how class labels lie to the tokens that the model embeds, and whether attention sees the next token",
        ),
        "update_sample": FactKind(
            "rules",
            "0.05 ms for each of at most 32 parameters, of which 1,024 elements are copied, at steps 8 to 64 apart",
            "direction and size of updates against gradients, weights, decay and precision",
        ),
        "gradient_noise": FactKind(
            "",
            "up to 0.1 ms for each of at most eight linear layers, of which rows are copied, at steps 2 to 64 apart",
            "how much the gradients of the samples of a batch differ, in linear layers",
        ),
        "running_statistics": FactKind(
            "rules",
            "a few reductions per normalisation at the 1st, 2nd, 4th, 8th ... captured step and the first evaluation",
            "how far the running statistics of normalisation have moved, and how far they are from their inputs",
        ),
        "rank_gradients": FactKind(
            "rules",
            "nothing with one process; with several, two copies of 16 elements of a gradient at captured steps",
            "some elements of a gradient before and after ranks average it, and the wrapper that averages",
        ),
        "loss_graph": FactKind(
            "rules",
            "one reading of autograd's graph at the first three captured steps, then the 4th, 16th, 64th ...",
            "the terms of the loss, with the operations that make each of a model's outputs; parameters out of reach",
        ),
        "forward_graph": FactKind(
            "rules",
            "the same reading",
            "operations with weights, what lies between them, depth, shortcuts and normalisations",
        ),
        "unheld_parameters": FactKind(
            "rules",
            "the same reading, and a copy of 1,024 elements of each of at most 32 such parameters",
            "parameters that a backward reaches and that no optimizer updates, of modules that no optimizer knows",
        ),
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
