"""For tests of training scripts, of custom adapters, rules, stores and actions, and of tools that use watchglass.

Names load when first used, so the pytest plugin costs a test suite that uses none of them nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.testing.action_suite import (
        ActionSuite as ActionSuite,
        delivered as delivered,
        example_event as example_event,
    )
    from watchglass.testing.adapter_suite import AdapterCase as AdapterCase, AdapterSuite as AdapterSuite
    from watchglass.testing.builder import (
        Batch as Batch,
        Row as Row,
        RunBuilder as RunBuilder,
        Silence as Silence,
        Step as Step,
        build_run as build_run,
    )
    from watchglass.testing.clock import FakeClock as FakeClock
    from watchglass.testing.healthy import assert_trains_healthy as assert_trains_healthy
    from watchglass.testing.phase_suite import PhaseCase as PhaseCase, PhaseSuite as PhaseSuite
    from watchglass.testing.source_suite import SourceSuite as SourceSuite

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
