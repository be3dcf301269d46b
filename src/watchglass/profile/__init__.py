"""The profiler: system metrics, sampled by one separate process for each machine of a run."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.profile.metrics import (
        Metric as Metric,
        MetricReading as MetricReading,
        MetricSource as MetricSource,
        Rates as Rates,
        SourceUnavailableError as SourceUnavailableError,
    )
    from watchglass.profile.sampler import Sampler as Sampler
    from watchglass.profile.sources import open_sources as open_sources

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
