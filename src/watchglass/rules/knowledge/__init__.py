"""What causes what, as data: read from TOML files, the package's own and those of users."""

from watchglass.rules.knowledge.knowledge import Knowledge
from watchglass.rules.knowledge.reading import built_in_knowledge, load_knowledge

__all__ = ["Knowledge", "built_in_knowledge", "load_knowledge"]
