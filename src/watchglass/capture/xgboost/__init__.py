"""The adapter for XGBoost; the only package that imports it."""

from watchglass.capture.xgboost.callback import XGBoost, XGBoostCallback

__all__ = ["XGBoost", "XGBoostCallback"]
