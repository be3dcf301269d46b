"""What causes what, as data: read from TOML files, the package's own and those of users."""

from watchglass.rules.knowledge.knowledge import Knowledge, Link, Symptom
from watchglass.rules.knowledge.reading import BUILT_IN_FILE, built_in_knowledge, load_knowledge
from watchglass.rules.knowledge.templates import Placeholder, Template

__all__ = [
    "BUILT_IN_FILE", "Knowledge", "Link", "Placeholder", "Symptom", "Template", "built_in_knowledge", "load_knowledge",
]  # fmt: skip
