"""Settings of users, validated once, and the only reader of the environment."""

from typing import TYPE_CHECKING

from watchglass.config import environment as environment
from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.config.clock import Clock as Clock
    from watchglass.config.collection import (
        BUILT_IN_COLLECTIONS as BUILT_IN_COLLECTIONS,
        DEFAULT_COLLECTIONS as DEFAULT_COLLECTIONS,
        PART_OF as PART_OF,
        Collection as Collection,
    )
    from watchglass.config.evaluation import (
        CALIBRATIONS as CALIBRATIONS,
        ActionSpec as ActionSpec,
        EvaluatorConfig as EvaluatorConfig,
        RuleSpec as RuleSpec,
    )
    from watchglass.config.evaluator_timing import EvaluatorTiming as EvaluatorTiming
    from watchglass.config.facts import (
        FACTS as FACTS,
        SKETCHES as SKETCHES,
        chosen_facts as chosen_facts,
        facts_for as facts_for,
    )
    from watchglass.config.files import (
        find_file as find_file,
        read_actions as read_actions,
        read_file as read_file,
        read_toml as read_toml,
    )
    from watchglass.config.locations import (
        DEFAULT_RUNS as DEFAULT_RUNS,
        absolute as absolute,
        joined as joined,
        local_path as local_path,
        scheme_of as scheme_of,
    )
    from watchglass.config.memory import machine_bytes as machine_bytes
    from watchglass.config.parameters import (
        ParameterError as ParameterError,
        ParameterInfo as ParameterInfo,
        build as build,
        check_names as check_names,
        describe as describe,
        parameter as parameter,
        suggest as suggest,
        validate as validate,
        values as values,
    )
    from watchglass.config.plugins import (
        Contract as Contract,
        Plugin as Plugin,
        built as built,
        dataclass_transform as dataclass_transform,
        faults_of as faults_of,
        file_and_class as file_and_class,
        find_class as find_class,
        installed as installed,
        name_of as name_of,
        names_file as names_file,
        seen_from as seen_from,
    )
    from watchglass.config.process_config import ProcessConfig as ProcessConfig
    from watchglass.config.profile_windows import (
        MOST_PROFILED_STEPS as MOST_PROFILED_STEPS,
        ProfiledRange as ProfiledRange,
    )
    from watchglass.config.profiler import ProfilerConfig as ProfilerConfig
    from watchglass.config.regular_files import (
        NotRegularError as NotRegularError,
        near_file as near_file,
        open_regular as open_regular,
        read_regular as read_regular,
        why_no_file as why_no_file,
    )
    from watchglass.config.sampling import SamplerConfig as SamplerConfig
    from watchglass.config.saving import (
        EXACT_REDUCTIONS as EXACT_REDUCTIONS,
        MODE_NAMES as MODE_NAMES,
        REDUCTION_NAMES as REDUCTION_NAMES,
        ModeSteps as ModeSteps,
        Schedule as Schedule,
    )
    from watchglass.config.session import SETTINGS as SETTINGS, SessionConfig as SessionConfig
    from watchglass.config.sources import (
        SettingsLayer as SettingsLayer,
        add_settings as add_settings,
        combine as combine,
    )
    from watchglass.config.tensorboard import ExporterConfig as ExporterConfig, TensorBoardConfig as TensorBoardConfig
    from watchglass.config.timing import TIMING as TIMING, Timing as Timing

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
