"""What the rooms exchange: plain dataclasses and field tables, with no behaviour beyond conversion.

Rooms meet here and never at each other's classes. Everything is immutable and can be written as JSON or as
fixed-size rows; nothing here imports a framework, Arrow or any other room but :mod:`watchglass.errors`.
"""

from watchglass.records.ending import BypassedUpdates, Failure, UnsteppedBackwards
from watchglass.records.events import Event
from watchglass.records.findings import (
    Finding,
    Observation,
    RuleStatus,
    Severity,
    Status,
    number_from_json,
    number_to_json,
)
from watchglass.records.handing import as_json, from_json
from watchglass.records.training import (
    COUNT_FIELDS,
    FORMAT_VERSION,
    HISTOGRAM_MANTISSA_BITS,
    MOST_MODELS,
    REDUCTION_FIELDS,
    SCALAR_FIELDS,
    STATISTIC_FIELDS,
    STEP_END_FIELDS,
    Fact,
    Mode,
    Origin,
    Reduction,
    Role,
    StepEnd,
    TensorInfo,
    UnitKind,
    model_name,
    series_name,
)
from watchglass.records.verdict import (
    Cause,
    Diagnosis,
    ExplainedFinding,
    ModelSummary,
    RankedCause,
    SymptomReading,
    Verdict,
    judged,
)
from watchglass.records.wording import count

__all__ = [
    "COUNT_FIELDS",
    "FORMAT_VERSION",
    "HISTOGRAM_MANTISSA_BITS",
    "MOST_MODELS",
    "REDUCTION_FIELDS",
    "SCALAR_FIELDS",
    "STATISTIC_FIELDS",
    "STEP_END_FIELDS",
    "BypassedUpdates",
    "Cause",
    "Diagnosis",
    "Event",
    "ExplainedFinding",
    "Fact",
    "Failure",
    "Finding",
    "Mode",
    "ModelSummary",
    "Observation",
    "Origin",
    "RankedCause",
    "Reduction",
    "Role",
    "RuleStatus",
    "Severity",
    "Status",
    "StepEnd",
    "SymptomReading",
    "TensorInfo",
    "UnitKind",
    "UnsteppedBackwards",
    "Verdict",
    "as_json",
    "count",
    "from_json",
    "judged",
    "model_name",
    "number_from_json",
    "number_to_json",
    "series_name",
]
