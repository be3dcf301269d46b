"""What packages exchange: plain dataclasses and field tables, with no behaviour beyond conversion.

Packages meet here and never at each other's classes. Everything is immutable and can be written as JSON or as
fixed-size rows; nothing here imports a framework, Arrow or any other package but :mod:`watchglass.errors`.
"""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.records.evaluation import Evaluation as Evaluation
    from watchglass.records.events import Event as Event
    from watchglass.records.fact import (
        DeclaredFact as DeclaredFact,
        Fact as Fact,
        declared_kinds as declared_kinds,
        read_facts as read_facts,
    )
    from watchglass.records.failure import Failure as Failure, without_reason as without_reason
    from watchglass.records.fields_of_classes import field_types as field_types
    from watchglass.records.findings import (
        CURE as CURE,
        Finding as Finding,
        Observation as Observation,
        RuleStatus as RuleStatus,
        Severity as Severity,
        Status as Status,
        number_from_json as number_from_json,
        number_to_json as number_to_json,
    )
    from watchglass.records.functions import (
        PYTHON_PROFILERS as PYTHON_PROFILERS,
        CallNode as CallNode,
        FunctionTotals as FunctionTotals,
        PythonWindow as PythonWindow,
    )
    from watchglass.records.json_records import (
        FAULTS as FAULTS,
        as_json as as_json,
        from_json as from_json,
        record_as_json as record_as_json,
        record_from_json as record_from_json,
    )
    from watchglass.records.module_times import (
        ModuleSeconds as ModuleSeconds,
        StepModules as StepModules,
        UntimedModules as UntimedModules,
    )
    from watchglass.records.operation_faults import (
        COMPILED_MODEL as COMPILED_MODEL,
        FAULT_KINDS as FAULT_KINDS,
        FaultKind as FaultKind,
        OperationFault as OperationFault,
    )
    from watchglass.records.operations import (
        LOSSES as LOSSES,
        OPERATIONS as OPERATIONS,
        PARAMETER as PARAMETER,
        LossKind as LossKind,
        Operation as Operation,
        OperationKind as OperationKind,
        loss_kind as loss_kind,
    )
    from watchglass.records.operators import (
        MemoryTotals as MemoryTotals,
        ModuleOperator as ModuleOperator,
        OperatorTotals as OperatorTotals,
        OperatorWindow as OperatorWindow,
        summed_operators as summed_operators,
    )
    from watchglass.records.plurals import count as count, in_percent as in_percent, rounded as rounded
    from watchglass.records.rows import (
        FACTS as FACTS,
        FINDINGS as FINDINGS,
        INACTIVE_UNITS as INACTIVE_UNITS,
        LOADER_WORKERS as LOADER_WORKERS,
        NOTES as NOTES,
        PAUSES as PAUSES,
        PHASES as PHASES,
        RAW as RAW,
        REDUCTIONS as REDUCTIONS,
        ROW_KINDS as ROW_KINDS,
        SAMPLES as SAMPLES,
        SATURATED_UNITS as SATURATED_UNITS,
        SCALARS as SCALARS,
        SIZES as SIZES,
        STATISTICS as STATISTICS,
        STEPS as STEPS,
        TENSORS as TENSORS,
        UNITS as UNITS,
        UNUSED_UNITS as UNUSED_UNITS,
        Encoding as Encoding,
        Field as Field,
        GivenUp as GivenUp,
        Row as Row,
        RowKey as RowKey,
        RowKind as RowKind,
        RowsHaving as RowsHaving,
        of_steps as of_steps,
    )
    from watchglass.records.sighting import Sighting as Sighting
    from watchglass.records.training import (
        COUNT_FIELDS as COUNT_FIELDS,
        DERIVED_FIELDS as DERIVED_FIELDS,
        FORMAT_VERSION as FORMAT_VERSION,
        HISTOGRAM_MANTISSA_BITS as HISTOGRAM_MANTISSA_BITS,
        MOST_MODELS as MOST_MODELS,
        PHASE_NAMES as PHASE_NAMES,
        SEEN_ROWS as SEEN_ROWS,
        STATISTIC_FIELDS as STATISTIC_FIELDS,
        Loader as Loader,
        Mode as Mode,
        ModuleKind as ModuleKind,
        Origin as Origin,
        Pause as Pause,
        Reduction as Reduction,
        Role as Role,
        StepEnd as StepEnd,
        StepPhase as StepPhase,
        TensorInfo as TensorInfo,
        UnitKind as UnitKind,
        model_name as model_name,
        series_name as series_name,
    )
    from watchglass.records.verdict import (
        FEWEST_EXAMINED as FEWEST_EXAMINED,
        Cause as Cause,
        CauseCourse as CauseCourse,
        Diagnosis as Diagnosis,
        ExaminedSteps as ExaminedSteps,
        ExplainedFinding as ExplainedFinding,
        ModelSummary as ModelSummary,
        RankedCause as RankedCause,
        SymptomReading as SymptomReading,
        Verdict as Verdict,
        judged as judged,
    )
    from watchglass.records.windows import (
        COMPARED_STEPS as COMPARED_STEPS,
        WindowCost as WindowCost,
        WindowFrame as WindowFrame,
        WindowRefusal as WindowRefusal,
    )

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
