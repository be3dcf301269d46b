"""Pictures as data: a figure function returns one of these records, and a renderer draws it.

``svg`` and ``png`` draw for pages, ``view/notebook/figures.py`` for notebooks. A record holds all numbers that are
shown, in the units of its axes, so tests and tables read the same numbers as a person.
"""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.view.pictures.html import picture_html as picture_html
    from watchglass.view.pictures.records import (
        Axis as Axis,
        Band as Band,
        Bands as Bands,
        Bars as Bars,
        Grid as Grid,
        Image as Image,
        Line as Line,
        Lines as Lines,
        Mark as Mark,
        Picture as Picture,
        Piece as Piece,
        PointGroup as PointGroup,
        Points as Points,
        Story as Story,
        Strip as Strip,
        Strips as Strips,
    )
    from watchglass.view.pictures.svg import sparkline as sparkline

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
