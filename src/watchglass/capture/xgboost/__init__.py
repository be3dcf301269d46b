"""The adapter for XGBoost; the only room that imports it."""

from watchglass.capture.xgboost.callback import FEATURE_IMPORTANCE, XGBoostCallback

__all__ = ["FEATURE_IMPORTANCE", "XGBoostCallback"]
