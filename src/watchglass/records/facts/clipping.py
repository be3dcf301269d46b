"""Facts about gradients that are clipped or scaled."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.records.fact import DeclaredFact


@dataclass(frozen=True)
class Clip(DeclaredFact):
    """Gradient clipping: its limit, its caller, how often it had something to clip.

    Attributes:
        function: Name of the function.
        caller: Its caller, ``module:function``.
        max_norm: Limit of the norm; absent where it is a tensor.
        clip_value: Limit of each element, the same.
        norm_type: The norm.
        norm_of: "shards of this rank" where the norm covers the rank's part of a sharded one.
        calls: Calls since the last such fact.
        compared: Those of them whose norm was available.
        exceeded: Those whose norm was above the limit, or not finite.
    """

    KIND = "clip"
    FROM = "`torch.nn.utils`"
    WHEN = "a new limit: at once; counts: at captured steps, 32 calls apart"
    COST = "about a microsecond per clip call, at every step"

    function: str = ""
    caller: str = ""
    max_norm: float | None = None
    clip_value: float | None = None
    norm_type: float | None = None
    norm_of: str | None = None
    calls: int = 0
    compared: int = 0
    exceeded: int = 0


@dataclass(frozen=True)
class LossScale(DeclaredFact):
    """The scale of a gradient scaler, when it changes.

    Attributes:
        scale: The scale.
        before: The scale before the change.
    """

    KIND = "loss_scale"
    FROM = "`torch.amp.GradScaler`"
    WHEN = "on change, at once; on a device as the metric only"
    COST = "about a microsecond per update of a gradient scaler"

    scale: float | None = None
    before: float | None = None


@dataclass(frozen=True)
class StepSkipped(DeclaredFact):
    """Updates that a gradient scaler skipped.

    Attributes:
        loss_scale: Scale of a scaler on the CPU; absent on a device.
    """

    KIND = "step_skipped"
    FROM = "`torch.amp.GradScaler`, fused optimizers"
    WHEN = "each"
    COST = "nothing"

    loss_scale: float | None = None
