"""From findings to a verdict: findings with one cause, advice, and the conclusion about a run."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.diagnose.cause_scores import cause_courses as cause_courses
    from watchglass.diagnose.diagnosis import diagnose as diagnose
    from watchglass.diagnose.explanation import explain as explain, find_findings as find_findings
    from watchglass.diagnose.guides import rule_guide as rule_guide, rule_texts as rule_texts
    from watchglass.diagnose.judgement import verdict as verdict
    from watchglass.diagnose.summary import (
        BEING_READ as BEING_READ,
        RunSummary as RunSummary,
        Summaries as Summaries,
        preview_of as preview_of,
        summary_of as summary_of,
    )

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
