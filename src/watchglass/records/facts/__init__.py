"""The kinds of facts: each is declared once, for those who record it, rules, documentation and users.

A kind is imported when it is first used, because a training process records few of them.
"""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.records.facts.batches import (
        BatchInputs as BatchInputs,
        LoaderSettings as LoaderSettings,
        RowsSeen as RowsSeen,
    )
    from watchglass.records.facts.calls import (
        CalledObject as CalledObject,
        Calls as Calls,
        LeftoverGradients as LeftoverGradients,
        OrderOfCalls as OrderOfCalls,
        ReadLine as ReadLine,
        ReadLines as ReadLines,
    )
    from watchglass.records.facts.clipping import Clip as Clip, LossScale as LossScale, StepSkipped as StepSkipped
    from watchglass.records.facts.first_bad import (
        FirstBadPlace as FirstBadPlace,
        ModulesExamined as ModulesExamined,
        NonfiniteGradients as NonfiniteGradients,
        NonfiniteLoss as NonfiniteLoss,
    )
    from watchglass.records.facts.gradients import (
        AveragedGradient as AveragedGradient,
        NormalizationState as NormalizationState,
        NormalizationStatistics as NormalizationStatistics,
        SampledNoise as SampledNoise,
        UpdateGroup as UpdateGroup,
        UpdateSample as UpdateSample,
    )
    from watchglass.records.facts.graphs import (
        FewNormalized as FewNormalized,
        ForwardLayers as ForwardLayers,
        MadeBy as MadeBy,
        OutOfReach as OutOfReach,
        ReachedParameter as ReachedParameter,
        ReachedParameters as ReachedParameters,
        TermOfLoss as TermOfLoss,
        TermsOfLoss as TermsOfLoss,
    )
    from watchglass.records.facts.losses import (
        ComparedLabels as ComparedLabels,
        ComputedLoss as ComputedLoss,
        LossArgument as LossArgument,
        SeenByAttention as SeenByAttention,
        TokensAndLabels as TokensAndLabels,
    )
    from watchglass.records.facts.memory import AllocatorMemory as AllocatorMemory, HeldGraphs as HeldGraphs
    from watchglass.records.facts.modules import (
        AttentionUnreadable as AttentionUnreadable,
        InputGradientsUnavailable as InputGradientsUnavailable,
        NotCapturable as NotCapturable,
        TensorShape as TensorShape,
        TrainingFlags as TrainingFlags,
    )
    from watchglass.records.facts.parameters import (
        HeldParameters as HeldParameters,
        Membership as Membership,
        NamedParameters as NamedParameters,
    )
    from watchglass.records.facts.process import (
        CaptureCost as CaptureCost,
        CaptureFault as CaptureFault,
        CaptureInterval as CaptureInterval,
        CaptureOutOfMemory as CaptureOutOfMemory,
        CollectionUnmatched as CollectionUnmatched,
        Dropped as Dropped,
        ProfilerChanged as ProfilerChanged,
        RecordedInterval as RecordedInterval,
        Resumed as Resumed,
        Stacks as Stacks,
        TraceNotKept as TraceNotKept,
    )
    from watchglass.records.facts.run import (
        CapturePlan as CapturePlan,
        Initialization as Initialization,
        InitialWeight as InitialWeight,
        ModelDescription as ModelDescription,
        OptimizerSettings as OptimizerSettings,
        PlannedSteps as PlannedSteps,
        StageBegin as StageBegin,
    )
    from watchglass.records.facts.sketches import (
        Correlated as Correlated,
        InputSketch as InputSketch,
        Neighbours as Neighbours,
        OutputSketch as OutputSketch,
        SketchedPadding as SketchedPadding,
        SketchedUnits as SketchedUnits,
        TargetSketch as TargetSketch,
    )
    from watchglass.records.facts.updates import (
        BypassedUpdates as BypassedUpdates,
        UnsteppedBackwards as UnsteppedBackwards,
    )

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
