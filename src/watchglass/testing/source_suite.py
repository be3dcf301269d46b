"""Tests that every source of system metrics must pass, built in or custom: derive a class that makes the source.

Example::

    class TestMyDevice(SourceSuite):
        def source(self):
            return MyDevice()
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod

from watchglass.profile import MetricSource


class SourceSuite(ABC):
    """Tests of one source."""

    @abstractmethod
    def source(self) -> MetricSource:
        """A new source, on a machine that has its metrics."""

    def test_readings_have_names_units_and_a_number_for_each_instance(self) -> None:
        """What is read can be written as a row."""
        source = self.source()
        source.read(time.monotonic_ns() - 1_000_000_000)
        readings = source.read(time.monotonic_ns())
        source.close()
        assert readings, "the second call of read returns the metrics"
        names = [reading.metric.name for reading in readings]
        assert len(set(names)) == len(names), f"a metric is read twice: {names}"
        for reading in readings:
            assert all(part.isidentifier() for part in reading.metric.name.split(".")), reading.metric.name
            instances = reading.metric.instances
            assert len(reading.values) == (len(instances) if instances else 1), reading
            assert len(set(instances)) == len(instances), reading
            for value in map(float, reading.values):
                assert math.isnan(value) or value >= 0 or reading.metric.unit == "°C", reading
                if reading.metric.unit == "%" and not reading.metric.name.startswith("process"):
                    assert math.isnan(value) or value <= 100 + 1e-6, reading

    def test_metrics_are_the_same_in_the_same_order_at_each_call(self) -> None:
        """Rows of one machine have one layout as long as nothing changes."""
        source = self.source()
        source.read(time.monotonic_ns() - 1_000_000_000)
        first, second = ([each.metric for each in source.read(time.monotonic_ns() + more)] for more in (0, 1_000_000))
        source.close()
        assert first == second

    def test_its_limit_of_processor_time_is_a_share_of_a_core(self) -> None:
        """Another value is a percentage, or would never be reached."""
        source = self.source()
        source.close()
        assert source.name
        assert source.core_share is None or 0 < source.core_share < 0.1

    def test_closing_twice_does_nothing(self) -> None:
        """The sampler closes a source also after it has failed."""
        source = self.source()
        source.close()
        source.close()
