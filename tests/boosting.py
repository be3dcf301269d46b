"""Training runs of XGBoost for tests of rules about trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xgboost

import watchglass


def boost(run: Path, capture: dict[str, Any], inputs: Any, rounds: int = 12, **parameters: Any) -> None:
    """Train boosted trees with XGBoost's callback."""
    random = np.random.default_rng(1)
    labels = (inputs @ np.linspace(1, 2, inputs.shape[1]) + random.normal(size=len(inputs)) > 0).astype(int)
    data = xgboost.DMatrix(inputs, labels)
    xgboost.train(
        {"objective": "binary:logistic", "nthread": 1, **parameters}, data, rounds, evals=[(data, "train")],
        callbacks=[watchglass.callback("xgboost", run=run, strict=True, **capture)], verbose_eval=False,
    )  # fmt: skip
