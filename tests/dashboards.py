"""What tests of the dashboard share: its token, and a run with hostile names."""

from __future__ import annotations

import numpy as np

from watchglass.records import Finding, Mode, Severity
from watchglass.testing import Step

TOKEN, COOKIE = "the-token", "watchglass-8420"
HOSTILE = "<img src=x onerror=alert(1)>"


def finding(rule: str = "ExplodingGradient", message: str = "the gradient norm grew 100-fold") -> Finding:
    return Finding(
        id="0123456789ab", rule=rule, severity=Severity.ERROR, step=12, last_step=19, count=8, mode=Mode.TRAIN,
        worker="worker_0", tensors=(f"gradient/{HOSTILE}.weight",), value=7.0, limit=1.0, message=message,
    )  # fmt: skip


def steps(count: int = 20) -> list[Step]:
    made = []
    for number in range(count):
        weight = np.full((4, 4), 1.0 + number, np.float32)
        statistics = {f"{HOSTILE}.weight": weight, f"gradient/{HOSTILE}.weight": weight / 10}
        made.append(Step({"loss": 2.0 / (number + 1), f"{HOSTILE}/reward": float(number)}, statistics=statistics))
    return made
