"""The adapter for XGBoost; the only package that imports it."""

from watchglass.capture.xgboost.callback import XGBoostCallback, XGBoostLoop

__all__ = ["XGBoostCallback", "XGBoostLoop"]
