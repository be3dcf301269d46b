"""Questions that programs ask about runs, with short typed answers; and a server of the Model Context Protocol."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.questions.answers import SeriesAnswer as SeriesAnswer
    from watchglass.questions.asking import Questions as Questions
    from watchglass.questions.series import read_series as read_series
    from watchglass.questions.server import make_server as make_server

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
