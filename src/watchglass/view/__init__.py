"""Output for people and CI: figures, report, verdict, formats. Plotly and rich are imported when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.view.block_values import json_blocks as json_blocks, pictures_in as pictures_in
    from watchglass.view.blocks import (
        Block as Block,
        Disclosure as Disclosure,
        Figure as Figure,
        Gallery as Gallery,
        Inline as Inline,
        Items as Items,
        Pairs as Pairs,
        Section as Section,
        Span as Span,
        Text as Text,
        TextTable as TextTable,
        captioned as captioned,
        plain as plain,
    )
    from watchglass.view.capture_cost import capture_lines as capture_lines
    from watchglass.view.comparison import Compared as Compared, comparison_blocks as comparison_blocks
    from watchglass.view.conclusion import (
        FAIL_ON as FAIL_ON,
        Terms as Terms,
        counted as counted,
        enough as enough,
        failed_rules as failed_rules,
        not_answered as not_answered,
        outcome as outcome,
    )
    from watchglass.view.courses import Courses as Courses
    from watchglass.view.curves import (
        BY as BY,
        colour_of as colour_of,
        comparable as comparable,
        compared_curves as compared_curves,
    )
    from watchglass.view.distributions import (
        distribution_figure as distribution_figure,
        histogram_figure as histogram_figure,
        raw_values as raw_values,
    )
    from watchglass.view.explanation import (
        explain_findings as explain_findings,
        explain_verdict as explain_verdict,
        explanation_json as explanation_json,
    )
    from watchglass.view.export import check_export_path as check_export_path, export_parquet as export_parquet
    from watchglass.view.failure import ended_how as ended_how, failure_sentence as failure_sentence
    from watchglass.view.figures import run_figures as run_figures, scalar_figures as scalar_figures
    from watchglass.view.formats import (
        FORMATS as FORMATS,
        Format as Format,
        Judged as Judged,
        Renderer as Renderer,
        RuleText as RuleText,
        renderer as renderer,
    )
    from watchglass.view.html_format import (
        SYMBOLS as SYMBOLS,
        block_html as block_html,
        blocks_html as blocks_html,
        page_style as page_style,
        verdict_html as verdict_html,
    )
    from watchglass.view.json_format import (
        finding_to_json as finding_to_json,
        json_document as json_document,
        json_schema as json_schema,
        strict_json as strict_json,
    )
    from watchglass.view.junit import junit_document as junit_document
    from watchglass.view.layer_grids import (
        GRADIENT_NORM as GRADIENT_NORM,
        LAYER_FIELDS as LAYER_FIELDS,
        joined_sentence as joined_sentence,
        layer_depths as layer_depths,
        layer_grid as layer_grid,
        layer_names as layer_names,
    )
    from watchglass.view.markdown import (
        block_markdown as block_markdown,
        escape as escape,
        markdown_document as markdown_document,
    )
    from watchglass.view.module_tables import first_bad as first_bad, modules_table as modules_table
    from watchglass.view.notebook.card import run_card as run_card
    from watchglass.view.notebook.following import live as live
    from watchglass.view.notebook.plots import Plots as Plots
    from watchglass.view.output_file import check_output_path as check_output_path, write_whole as write_whole
    from watchglass.view.pictures import Picture as Picture, sparkline as sparkline
    from watchglass.view.pictures.pyramid import Pyramid as Pyramid
    from watchglass.view.pictures.values import drawings_of as drawings_of, nearest as nearest, values_at as values_at
    from watchglass.view.profile_report import (
        profile_json as profile_json,
        render_profile_report as render_profile_report,
    )
    from watchglass.view.report import (
        check_report_path as check_report_path,
        render_report as render_report,
        report_json as report_json,
        write_report as write_report,
    )
    from watchglass.view.sarif import sarif_document as sarif_document
    from watchglass.view.sections import (
        diagnosis_blocks as diagnosis_blocks,
        fact_blocks as fact_blocks,
        finding_blocks as finding_blocks,
        folded_statuses as folded_statuses,
        live_tone as live_tone,
        scalar_blocks as scalar_blocks,
        setting_blocks as setting_blocks,
        summary_block as summary_block,
    )
    from watchglass.view.series import training_step as training_step
    from watchglass.view.settings import (
        differing as differing,
        origin_rows as origin_rows,
        setting_rows as setting_rows,
        settings_of as settings_of,
    )
    from watchglass.view.story import story_figure as story_figure
    from watchglass.view.text import (
        command as command,
        duration as duration,
        escaped as escaped,
        exact_duration as exact_duration,
        harmless_json as harmless_json,
        number as number,
        percent as percent,
        printable as printable,
        size as size,
    )
    from watchglass.view.time_figures import (
        FUNCTION_TITLES as FUNCTION_TITLES,
        OPERATOR_TITLES as OPERATOR_TITLES,
        function_rows as function_rows,
        instance_grids as instance_grids,
        machine_figure as machine_figure,
        operator_rows as operator_rows,
        trace_rows as trace_rows,
    )
    from watchglass.view.timing import (
        machine_figures as machine_figures,
        time_blocks as time_blocks,
        usage_blocks as usage_blocks,
    )
    from watchglass.view.torch_trace import TorchTrace as TorchTrace, read_torch_trace as read_torch_trace
    from watchglass.view.trace import (
        check_trace_path as check_trace_path,
        trace_document as trace_document,
        write_trace as write_trace,
    )
    from watchglass.view.usage import (
        functions_sentence as functions_sentence,
        loading_sentence as loading_sentence,
        modules_sentence as modules_sentence,
        operators_sentence as operators_sentence,
        phases_sentence as phases_sentence,
        refusal_sentence as refusal_sentence,
        untimed_sentence as untimed_sentence,
        usage_sentence as usage_sentence,
        window_cost_sentence as window_cost_sentence,
    )
    from watchglass.view.verdict import (
        STYLES as STYLES,
        TextRow as TextRow,
        judged_rows as judged_rows,
        rows_text as rows_text,
        screen as screen,
        tone as tone,
        verdict_text as verdict_text,
        wrapped as wrapped,
    )
    from watchglass.view.verdict_sentences import amounts as amounts, headline as headline

    #: Public names by file. A launcher that only prints an error does not import NumPy or plotly.
    from watchglass.view.worker_grids import WORKER_FIELDS as WORKER_FIELDS, compared_workers as compared_workers

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
