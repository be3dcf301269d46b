"""The live dashboard: runs of a folder or bucket as pages in a browser. Needs the extra ``dashboard``."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.dashboard.serving import Address as Address, serve as serve

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
