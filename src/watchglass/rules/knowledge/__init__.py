"""Symptoms and their causes as data, from TOML files of the package and of users."""

from watchglass.rules.knowledge.crashes import cause_of_crash
from watchglass.rules.knowledge.knowledge import ALREADY, Knowledge
from watchglass.rules.knowledge.reading import built_in_knowledge, load_knowledge

__all__ = ["ALREADY", "Knowledge", "built_in_knowledge", "cause_of_crash", "load_knowledge"]
